"""The page: a row with a bar for each disk, the fullest first."""

from html import escape

from disk_usage.disk import amount

WARN, ALARM = 70, 90
STYLE = """
body {margin: 24px; font: 15px/1.5 "DejaVu Sans", sans-serif; background: #fff; color: #222}
h1 {font-size: 20px}
.disk {display: flex; align-items: center; gap: 12px; margin: 10px 0}
.name {flex: none; width: 90px}
.track {flex: none; width: 300px; height: 18px; background: #ddd; border-radius: 4px}
.bar {height: 18px; border-radius: 4px}
.ok {background: #2a9d4a} .warn {background: #e0a020} .alarm {background: #d03030}
"""


def colour(percent):
    if percent >= ALARM:
        return "alarm"
    return "warn" if percent >= WARN else "ok"


def row(disk):
    numbers = f"{amount(disk.used)} of {amount(disk.size)}"
    return (
        f'<div class="disk"><span class="name">{escape(disk.name)}</span>'
        f'<div class="track"><div class="bar {colour(disk.percent)}" style="width: {disk.percent}%"></div></div>'
        f"<span>{numbers}</span></div>"
    )


def render(disks):
    rows = "\n".join(row(disk) for disk in sorted(disks, key=lambda disk: (disk.free, disk.name)))
    return f'<!doctype html>\n<meta charset="utf-8">\n<title>Disks</title>\n<style>{STYLE}</style>\n<h1>Disks</h1>\n{rows}\n'
