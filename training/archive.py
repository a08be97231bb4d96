"""Build the carried archive: Python source of large permissive packages that the training machine does not have.

    python -m training.archive            # writes .data/source.tar.xz, about 13 MB, from the package registry

The packages are named one by one below. Each wheel's own metadata must pass `training.licences`; test code, vendored
copies, generated code and data tables are left out; a package gives at most its share, by a seeded choice of its
modules. The archive is made here, read by `training.sources` and never committed.
"""

from __future__ import annotations

import argparse
import dataclasses
import email
import io
import json
import lzma
import random
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from training.licences import allowed_licence
from training.quality import is_test_path, worth_reading
from training.sources import MAX_FILE_BYTES, PackageRecord, normalised, usable_package, usable_path

PACKAGES_TEXT = """
django sqlalchemy twisted celery sphinx bokeh dask distributed apache-airflow-core moto nltk mypy jedi parso
ipython tornado scrapy homeassistant yt-dlp nova neutron cinder keystone ironic openstack-heat swift glance
manila octavia mlflow ray apache-beam diffusers datasets gradio langchain-community llama-index-core pyomo
astropy sunpy pymatgen nilearn mne dipy nipype nibabel pydicom vispy pyqtgraph kivy arcade manim cvxpy qiskit
cirq-core pennylane sktime spacy prefect dagster luigi great-expectations dbt-core wagtail djangorestframework
black flake8 bandit libcst mitmproxy gevent trio streamlink reportlab openpyxl xlsxwriter pdfminer-six pypdf
geopandas platformio conan scons robotframework locust selenium sanic flask starlette fastapi litestar falcon
bottle nikola mkdocs algorithms pygorithm pyformlang galois construct bitstring lark ply parsimonious sqlglot
sqlparse mistune markdown2 babel arrow pendulum dateparser holidays pint uncertainties xonsh prompt-toolkit
textual cmd2 docker invoke pywikibot pymongo redis tortoise-orm mongoengine marshmallow jsonschema pyro-ppl
pymc stable-baselines3 mesa simpy pybamm openmdao trimesh pyvista ezdxf altair angr apache-superset autogluon-core
botocore gymnasium hatch holoviews lifelines optuna panel pdm poetry pyscf rdflib scikit-rf sentry-sdk yapf
"""
PACKAGES = PACKAGES_TEXT.split()

PYTHON = "3.13"
"""The Python whose wheels are taken; modules that the training machine's Python cannot parse are skipped there."""
SHARE_BYTES = 8_000_000
"""Most text that one package gives, so that no project's style dominates."""
SEED = 20


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path(".data/source.tar.xz"))
    parser.add_argument(
        "--wheels", type=Path, default=Path("build/wheels"), help="folder of downloaded wheels, filled here"
    )
    parser.add_argument("--total", type=int, default=100_000_000, help="most bytes of text; 7.4 of them make one")
    options = parser.parse_args(argv)
    download(options.wheels)
    records, files = [], []
    for wheel in sorted(options.wheels.glob("*.whl")):
        record, modules = read_wheel(wheel)
        if record is None:
            print(f"left out, no allowed licence: {wheel.name}")
            continue
        records.append(record)
        files += [(record.package, path, data) for path, data in modules]
    files = within(files, options.total)
    write_archive(options.out, records, files)
    size = options.out.stat().st_size / 2**20
    print(
        f"{len(records)} packages, {len(files)} modules, {sum(len(f[2]) for f in files) / 1e6:.0f} MB -> {size:.1f} MiB"
    )


def download(folder: Path) -> None:
    """Fetch each named package's wheel that is not there yet, without its dependencies."""
    folder.mkdir(parents=True, exist_ok=True)
    have = {normalised(wheel.name.split("-")[0]) for wheel in folder.glob("*.whl")}
    for name in PACKAGES:
        if normalised(name) in have:
            continue
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "--python-version", PYTHON, "--dest", str(folder), name], check=True)


def read_wheel(wheel: Path) -> tuple[PackageRecord | None, list[tuple[str, bytes]]]:
    """A wheel's record and its modules worth training on; no record when its licence is not allowed."""
    with zipfile.ZipFile(wheel) as archive:
        entry = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(entry))
        name = normalised(str(metadata["Name"]))
        licence = allowed_licence(metadata)
        if licence is None or not usable_package(name) or name not in {normalised(p) for p in PACKAGES}:
            return None, []
        record = PackageRecord(package=name, version=str(metadata["Version"]), licence=licence, origin="archive")
        return record, list(shared_out(archive))


def shared_out(wheel: zipfile.ZipFile) -> Iterator[tuple[str, bytes]]:
    infos = [i for i in wheel.infolist() if usable_path(i.filename) and i.file_size <= MAX_FILE_BYTES]
    infos = [i for i in infos if not is_test_path(i.filename)]
    random.Random(SEED).shuffle(infos)
    taken = 0
    for info in infos:
        data = wheel.read(info)
        if taken + len(data) > SHARE_BYTES:
            continue
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            continue
        if worth_reading(text):
            taken += len(data)
            yield info.filename, data


def within(files: list[tuple[str, str, bytes]], total: int) -> list[tuple[str, str, bytes]]:
    """A seeded choice of at most `total` bytes, ordered so that similar text lies together."""
    order = list(range(len(files)))
    random.Random(SEED).shuffle(order)
    kept, size = [], 0
    for index in order:
        if size + len(files[index][2]) <= total:
            size += len(files[index][2])
            kept.append(index)
    return [files[index] for index in sorted(kept, key=lambda i: files[i][:2])]


def write_archive(out: Path, records: list[PackageRecord], files: list[tuple[str, str, bytes]]) -> None:
    """Write `packages.json`, then the modules as `package/path`; times and owners are constant, so a rebuild is
    equal."""
    out.parent.mkdir(parents=True, exist_ok=True)
    listing = json.dumps([dataclasses.asdict(r) for r in records]).encode()
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 128 << 20}]
    with lzma.open(out, "wb", filters=filters) as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
        members = [("packages.json", listing), *((f"{package}/{path}", data) for package, path, data in files)]
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    main()
