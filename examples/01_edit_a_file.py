"""A tool on its own: arguments in, a result for the model and blocks for the person out."""

import asyncio
import tempfile
from pathlib import Path

from m3_tools.base import ToolContext, call_tool
from m3_tools.edit import EditTool
from m3_tools.read import ReadTool


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        (root / "greeting.py").write_text("def greet(name):\n    return f'Hello {nmae}'\n")
        context = ToolContext(root=root, spill_dir=root)

        shown = await call_tool(ReadTool(), {"path": "greeting.py", "symbol": "greet"}, context)
        print(shown.text)

        edited = await call_tool(EditTool(), {"path": "greeting.py", "old": "{nmae}", "new": "{name}"}, context)
        print(edited.text)
        assert "{name}" in (root / "greeting.py").read_text()

        missed = await call_tool(EditTool(), {"path": "greeting.py", "old": "{nmae}", "new": "{name}"}, context)
        print(missed.text)  # a failure is a result as well; it says what to do
        assert missed.is_error


asyncio.run(main())
