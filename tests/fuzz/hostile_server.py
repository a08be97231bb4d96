"""A server that answers each message with the next frames of a case. Run as a program; the case is a file of JSON.

Of a frame the characters are bytes; `@ID` stands for the identifier of the message, as JSON.
"""

import json
import sys

frames = json.load(open(sys.argv[1]))  # noqa: SIM115 - it ends with the program
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    for frame in frames.pop(0) if frames else []:
        if frame == "END":
            sys.exit(3)
        sys.stdout.buffer.write(frame.replace("@ID", json.dumps(message["id"])).encode("latin-1"))
    sys.stdout.buffer.flush()
