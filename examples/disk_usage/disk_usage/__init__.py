from disk_usage.disk import Disk
from disk_usage.page import render

__all__ = ["Disk", "render"]
