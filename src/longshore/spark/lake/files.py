"""The small files of a lake that Spark does not write: manifests and records."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from longshore.core.errors import InvalidArgument
from longshore.core.validation import new_id
from longshore.spark.lake.manifest import LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_TAKEN_AS_PATTERNS = set("*?[]{}\\")


class Files(Protocol):
    """A folder, by names relative to it."""

    root: str
    """As Spark takes it."""

    def read(self, name: str) -> str | None:
        """The text of a file, or None if there is none."""
        ...

    def put_new(self, name: str, text: str) -> bool:
        """Makes a file whole or not at all; False if there is one already."""
        ...

    def put(self, name: str, text: str) -> None:
        """The same, taking the place of what is there."""
        ...

    def names(self, folder: str) -> list[str]:
        """What is in a folder; nothing if there is none."""
        ...

    def remove(self, name: str) -> None:
        """A file, or a folder with all that is in it."""
        ...

    def local(self, name: str) -> Path | None:
        """Where it is on this machine, if it is."""
        ...

    def alone(self) -> Any:
        """A context that keeps other writers out where the file system has locks."""
        ...


def files_at(path: str, spark: SparkSession | None = None) -> Files:
    """A folder on this machine, or at an address that the session knows."""
    if not path:
        raise InvalidArgument("lake", "is missing: the folder of the lake, like /data/lake or s3a://bucket/lake")
    if found := sorted(set(path) & _TAKEN_AS_PATTERNS):
        raise InvalidArgument("lake", f"must not have {' '.join(found)} in it, which Spark takes for a pattern: {path}")
    scheme = urlsplit(path).scheme
    if scheme in ("", "file"):
        return LocalFiles(Path(unquote(urlsplit(path).path) if scheme else path).expanduser().absolute())
    if spark is None:
        from longshore.spark.spark_session import session

        spark = session()
    return HadoopFiles(path.rstrip("/"), spark)


class LocalFiles:
    """On this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.root = f"file://{folder}"  # not escaped: Spark would take a %20 for what it is

    def read(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def put_new(self, name: str, text: str) -> bool:
        whole = self._written(name, text)
        try:
            os.link(whole, self._folder / name)
        except FileExistsError:
            return False
        finally:
            whole.unlink()
        return True

    def put(self, name: str, text: str) -> None:
        self._written(name, text).replace(self._folder / name)

    def _written(self, name: str, text: str) -> Path:
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        whole = target.with_name(f".{target.name}.{new_id()}")
        with whole.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return whole

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(child.name for child in (self._folder / folder).iterdir())
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        target = self._folder / name
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)  # who reads an old version of it has it open
        else:
            target.unlink(missing_ok=True)

    def local(self, name: str) -> Path | None:
        return self._folder / name

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A lock that ends with the process that holds it, however that ends."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / ".lock").open("w") as lock:
            try:
                _lock(lock.fileno())
            except BlockingIOError:
                raise LakeError(f"another run is at work on {self._folder}: wait until it has ended") from None
            yield


def _lock(file: int) -> None:
    if os.name == "posix":
        from fcntl import LOCK_EX, LOCK_NB, flock

        flock(file, LOCK_EX | LOCK_NB)


class HadoopFiles:
    """Wherever Spark can read and write, through its own Java."""

    def __init__(self, root: str, spark: SparkSession) -> None:
        self.root = root
        java: Any = spark.sparkContext._jvm
        self._path = java.org.apache.hadoop.fs.Path
        self._utf8 = java.java.nio.charset.StandardCharsets.UTF_8
        self._text = java.org.apache.commons.io.IOUtils
        settings = spark.sparkContext._jsc.hadoopConfiguration()
        self._system = self._path(root).getFileSystem(settings)

    def read(self, name: str) -> str | None:
        path = self._at(name)
        if not self._system.exists(path):
            return None
        stream = self._system.open(path)
        try:
            return str(self._text.toString(stream, self._utf8))
        finally:
            stream.close()

    def put_new(self, name: str, text: str) -> bool:
        if self._system.exists(self._at(name)):
            return False
        return self._renamed(name, text)

    def put(self, name: str, text: str) -> None:
        self._system.delete(self._at(name), False)
        self._renamed(name, text)

    def _renamed(self, name: str, text: str) -> bool:
        folder, _, last = name.rpartition("/")
        whole = self._at(f"{folder}/.{last}.{new_id()}")
        stream = self._system.create(whole, True)
        self._text.write(text, stream, self._utf8)
        stream.close()
        done = bool(self._system.rename(whole, self._at(name)))
        if not done:
            self._system.delete(whole, False)
        return done

    def names(self, folder: str) -> list[str]:
        path = self._at(folder)
        if not self._system.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._system.listStatus(path))

    def remove(self, name: str) -> None:
        self._system.delete(self._at(name), True)

    def local(self, name: str) -> Path | None:  # noqa: ARG002 - nothing is
        return None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No lock is possible here: the second commit is refused, and that run must be repeated."""
        yield

    def _at(self, name: str) -> Any:
        return self._path(f"{self.root}/{name}")
