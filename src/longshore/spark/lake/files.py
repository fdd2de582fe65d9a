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
    """The files of a folder, by relative name."""

    root: str
    """The folder's address for Spark."""

    def read(self, name: str) -> str | None:
        """Return the text of a file, or None if it does not exist."""
        ...

    def put_new(self, name: str, text: str) -> bool:
        """Create a file atomically; return False if it exists."""
        ...

    def put(self, name: str, text: str) -> None:
        """Create or replace a file atomically."""
        ...

    def names(self, folder: str) -> list[str]:
        """List a folder; empty if it does not exist."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its contents."""
        ...

    def local(self, name: str) -> Path | None:
        """Return the local path, or None if it is not on this machine."""
        ...

    def alone(self) -> Any:
        """A context that excludes other writers, if the file system has locks."""
        ...


def files_at(path: str, spark: SparkSession | None = None) -> Files:
    """Return a folder on this machine, or at an address that the Spark session can read."""
    if not path:
        raise InvalidArgument("lake", "is missing; name the folder of the lake, such as /data/lake or hdfs:///lake")
    if found := sorted(set(path) & _TAKEN_AS_PATTERNS):
        raise InvalidArgument("lake", f"must not contain {' '.join(found)}, which Spark reads as a pattern: {path}")
    scheme = urlsplit(path).scheme
    if scheme in ("", "file"):
        return LocalFiles(Path(unquote(urlsplit(path).path) if scheme else path).expanduser().absolute())
    if spark is None:
        from longshore.spark.spark_session import session

        spark = session()
    return HadoopFiles(path.rstrip("/"), spark)


class LocalFiles:
    """A folder on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.root = f"file://{folder}"  # not escaped: Spark reads %20 literally

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
            shutil.rmtree(target, ignore_errors=True)  # readers of an old version have its files open
        else:
            target.unlink(missing_ok=True)

    def local(self, name: str) -> Path | None:
        return self._folder / name

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold a lock that ends with this process, even after a crash."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / ".lock").open("w") as lock:
            try:
                _lock(lock.fileno())
            except BlockingIOError:
                raise LakeError(f"another run is using {self._folder}; wait until it has ended") from None
            yield


def _lock(file: int) -> None:
    if os.name == "posix":
        from fcntl import LOCK_EX, LOCK_NB, flock

        flock(file, LOCK_EX | LOCK_NB)


class HadoopFiles:
    """A folder in any file system of Spark, through its Java."""

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

    def local(self, name: str) -> Path | None:  # noqa: ARG002 - no file is local
        return None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold no lock, because there is none: of two concurrent runs the second commit is refused."""
        yield

    def _at(self, name: str) -> Any:
        return self._path(f"{self.root}/{name}")
