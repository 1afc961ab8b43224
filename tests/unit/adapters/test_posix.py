"""`PosixFileSystem` and `ThreadDisk` on the real ones."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest

from gym_ckpt.adapters.posix import PosixFileSystem, ThreadDisk
from gym_ckpt.limits import DISK_THREADS
from gym_ckpt.ports import FileSystem

files = PosixFileSystem()


def write(path: Path, data: bytes) -> None:
    file = files.create(str(path))
    file.write(data)
    file.fsync()
    file.close()
    file.close()


def test_create_is_exclusive_and_append_goes_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write(path, b"one")
    with pytest.raises(FileExistsError):
        files.create(str(path))
    appended = files.append(str(path))
    appended.write(b"two")
    appended.write(b"")
    appended.close()
    assert (path.read_bytes(), files.size(str(path))) == (b"onetwo", 6)


def test_truncate_then_append_leaves_no_hole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write(path, b"keep-torn")
    file = files.append(str(path))
    file.truncate(4)
    file.write(b"!")
    file.fsync()
    file.close()
    assert path.read_bytes() == b"keep!"


def test_read_chunks(tmp_path: Path) -> None:
    write(tmp_path / "f", b"abcdefg")
    assert list(files.read_chunks(str(tmp_path / "f"), 3)) == [b"abc", b"def", b"g"]
    with pytest.raises(FileNotFoundError):
        files.read_chunks(str(tmp_path / "absent"), 3)
    exhausted = files.read_chunks(str(tmp_path / "f"), 99)
    assert list(exhausted) == [b"abcdefg"]
    assert list(exhausted) == []


def test_reading_leaks_no_descriptor(tmp_path: Path) -> None:
    write(tmp_path / "f", b"abc")
    before = len(os.listdir("/dev/fd"))
    for _ in range(10):
        files.read_chunks(str(tmp_path / "f"), 1)
        next(files.read_chunks(str(tmp_path / "f"), 1))
        list(files.read_chunks(str(tmp_path / "f"), 1))
    assert len(os.listdir("/dev/fd")) == before


def test_directories_and_names(tmp_path: Path) -> None:
    here = str(tmp_path / "d")
    files.mkdir(here)
    with pytest.raises(FileExistsError):
        files.mkdir(here)
    for name in ("b", "a", "c"):
        write(tmp_path / "d" / name, name.encode())
    files.rename(f"{here}/b", f"{here}/a")
    files.link(f"{here}/a", f"{here}/z")
    with pytest.raises(FileExistsError):
        files.link(f"{here}/a", f"{here}/c")
    files.fsync_dir(here)
    assert files.listdir(here) == ["a", "c", "z"]
    assert (tmp_path / "d" / "a").read_bytes() == (tmp_path / "d" / "z").read_bytes() == b"b"
    with pytest.raises(OSError, match="not empty"):
        files.rmdir(here)
    for name in files.listdir(here):
        files.unlink(f"{here}/{name}")
    files.rmdir(here)
    assert (files.exists(here), files.is_dir(here)) == (False, False)


def test_questions_are_answered_no_only_when_the_answer_is_known(tmp_path: Path) -> None:
    write(tmp_path / "f", b"")
    assert (files.exists(str(tmp_path / "f")), files.is_dir(str(tmp_path / "f"))) == (True, False)
    assert files.is_dir(str(tmp_path))
    assert not files.exists(str(tmp_path / "f" / "below-a-file"))
    with pytest.raises(OSError) as unknown:
        files.exists(str(tmp_path / ("x" * 300)))
    assert unknown.value.errno == errno.ENAMETOOLONG


def test_a_lock_excludes_within_a_process_and_names_its_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    held = files.try_lock(path, "pid 1, the first and longer")
    assert held is not None
    assert files.try_lock(path, "pid 2") is None
    assert Path(path).read_text() == "pid 1, the first and longer"
    held.release()
    held.release()
    again = files.try_lock(path, "pid 3")
    assert again is not None
    assert Path(path).read_text() == "pid 3"
    again.release()


def test_a_lock_is_gone_with_its_process_however_that_ended(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    program = (
        "import sys\nfrom gym_ckpt.adapters.posix import PosixFileSystem\n"
        "lock = PosixFileSystem().try_lock(sys.argv[1], 'child')\nprint('held', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        assert files.try_lock(path, "parent") is None
        child.kill()
        child.wait()
    lock = files.try_lock(path, "parent")
    assert lock is not None
    lock.release()


# ---------------------------------------------------------------------------------------------------- Disk


@pytest.mark.anyio
async def test_a_job_runs_whole_in_one_other_thread(tmp_path: Path) -> None:
    threads = []

    def job(fs: FileSystem) -> Generator[str, None, int]:
        threads.append(threading.get_ident())
        yield "created"
        fs.create(str(tmp_path / "f")).close()
        threads.append(threading.get_ident())
        yield "done"
        return fs.size(str(tmp_path / "f"))

    assert await ThreadDisk().run(job) == 0
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


@pytest.mark.anyio
async def test_a_jobs_error_is_the_callers(tmp_path: Path) -> None:
    def job(fs: FileSystem) -> Generator[str, None, None]:
        yield "look"
        fs.size(str(tmp_path / "absent"))

    with pytest.raises(FileNotFoundError):
        await ThreadDisk().run(job)


@pytest.mark.anyio
async def test_a_job_that_has_begun_is_not_interrupted_by_cancellation(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def job(fs: FileSystem) -> Generator[str, None, None]:
        begun.set()
        yield "wait"
        assert go_on.wait(10)
        fs.create(str(tmp_path / "written")).close()

    async with anyio.create_task_group() as group:
        group.start_soon(ThreadDisk().run, job)
        while not begun.is_set():
            await anyio.sleep(0.001)
        group.cancel_scope.cancel()
        go_on.set()
    assert (tmp_path / "written").exists()


@pytest.mark.anyio
async def test_jobs_at_once_are_bounded() -> None:
    running, most = 0, 0
    guard = threading.Lock()
    full, leave = threading.Event(), threading.Event()

    def job(fs: FileSystem) -> Generator[str, None, None]:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
            if running == DISK_THREADS:
                full.set()
        yield "inside"
        leave.wait(10)
        with guard:
            running -= 1

    disk = ThreadDisk()
    async with anyio.create_task_group() as group:
        for _ in range(3 * DISK_THREADS):
            group.start_soon(disk.run, job)
        while not full.is_set():
            await anyio.sleep(0.001)
        await anyio.sleep(0.1)  # one too many would come in meanwhile
        leave.set()
    assert (most, running) == (DISK_THREADS, 0)


@pytest.mark.anyio
async def test_a_job_that_hangs_is_named_by_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_ckpt.adapters.posix.WAITING_SAID_AFTER_S", 0.0)
    leave = threading.Event()

    def job(fs: FileSystem) -> Generator[str, None, None]:
        yield "log.fsync"
        leave.wait(10)

    disk = ThreadDisk()
    async with anyio.create_task_group() as group:
        group.start_soon(disk.run, job)
        while "(log.fsync, " not in disk.waits():
            await anyio.sleep(0.001)
        leave.set()
    assert disk.waits() == ""
