"""Writes public/index.html."""

from pathlib import Path

from disk_usage import Disk, render

DISKS = [
    Disk("mail", 78_000_000_000, 100_000_000_000),
    Disk("backup", 250_000_000_000, 1_000_000_000_000),
    Disk("video", 3_880_000_000_000, 4_000_000_000_000),
]

if __name__ == "__main__":
    folder = Path("public")
    folder.mkdir(exist_ok=True)
    (folder / "index.html").write_text(render(DISKS), encoding="utf-8")
