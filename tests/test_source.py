"""Sources: releases from an index, folders, git repositories; kept, and never run (trap 15)."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest
from loopback import Index, serving
from toys import RAISING_SETUP, archive, member, sdist, tree_files, write_tree

from deepbuild import index as index_module
from deepbuild import source, unpack
from deepbuild.errors import ProbeError, UsageError
from deepbuild.host import Completed, LocalHost
from deepbuild.index import find_sdist, parse_config, read_config
from deepbuild.source import NEWEST_KNOWN_FOR, Store, copy_tree, folder_digest, parse_git

SHA = "0123456789abcdef" * 4


class PipSays(LocalHost):
    """This machine, with a pip whose configuration is given."""

    def __init__(self, config: str) -> None:
        self.config = config
        self.git_calls: list[str] = []

    def run(self, argv, **options) -> Completed:
        if "pip" in argv:
            return Completed(0, self.config, "")
        if "git" in argv:
            self.git_calls += [word for word in argv if word in {"fetch", "ls-remote"}]
        return super().run(argv, **options)


@pytest.fixture(autouse=True)
def _no_outer_settings(monkeypatch, tmp_path_factory):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path_factory.getbasetemp()))  # quick to read
    for name in list(os.environ):
        if name.startswith(("PIP_", "GIT_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)


@pytest.fixture
def index():
    with serving(Index()) as served:
        yield served


def a_store(folder: Path, config: str, now=lambda: 1e9) -> Store:
    return Store(folder / "sources", PipSays(config), sys.executable, lambda text: None, now)


@pytest.fixture
def store(tmp_path, index):
    return a_store(tmp_path, f"global.index-url='{index.url}'")


def entries(store: Store) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir()) if store.folder.exists() else []


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


# --- releases


def test_release_is_fetched_checked_and_not_run(store, index):
    content = sdist("0.19.8")
    index.add("deepspeed-0.19.8.tar.gz", content)
    tree = store.get("0.19.8")
    assert tree.version == tree.spec == "0.19.8"
    assert tree.digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert tree.origin.startswith("deepspeed-0.19.8.tar.gz from 127.0.0.1")
    assert "hash of the index matches" in tree.origin
    assert (Path(tree.path) / "setup.py").read_text() == RAISING_SETUP
    assert entries(store) == ["release-0.19.8"]


def test_newest_release_is_the_highest_final_one(store, index):
    for version in ("0.19.2", "0.19.10", "0.20.0rc1", "0.19.9"):
        index.add(f"deepspeed-{version}.tar.gz", sdist(version))
    assert store.get("").version == "0.19.10"


def test_wheels_and_other_projects_are_no_source(store, index):
    index.add("deepspeed-0.30.0-py3-none-any.whl", b"")
    index.add("deepspeed_kernels-0.31.0.tar.gz", b"")
    index.add("deepspeed-0.19.8.tar.gz", sdist())
    assert store.get("").version == "0.19.8"


def test_prerelease_and_yanked_ones_can_be_named(store, index):
    index.add("deepspeed-0.20.0rc1.tar.gz", sdist("0.20.0rc1"))
    assert store.get("0.20.0rc1").version == "0.20.0rc1"


def test_file_with_another_hash_is_refused(store, index):
    index.add("deepspeed-0.19.8.tar.gz", sdist(), f"#sha256={SHA}")
    with pytest.raises(ProbeError, match="not the file that the index names") as caught:
        store.get("0.19.8")
    assert SHA in caught.value.wanted
    assert entries(store) == []


def test_index_without_hashes_is_said(store, index):
    index.add("deepspeed-0.19.8.tar.gz", sdist(), "")
    tree = store.get("0.19.8")
    assert "gives no hash" in tree.origin
    assert tree.digest.startswith("sha256:")


def test_release_that_is_not_there_suggests_its_neighbours(store, index):
    for version in ("0.14.0", "0.19.7", "0.19.8"):
        index.add(f"deepspeed-{version}.tar.gz", sdist(version))
    with pytest.raises(UsageError, match=r"no deepspeed 0\.19\.77") as caught:
        store.get("0.19.77")
    assert "0.19.8, 0.19.7" in caught.value.found
    assert "0.14.0" not in caught.value.found
    assert caught.value.hint == "--deepspeed 0.19.8"


def test_release_too_old_is_refused_before_anything_is_fetched(store, index):
    with pytest.raises(UsageError, match="older than deepbuild supports"):
        store.get("0.13.5")
    assert index.requests == []


@pytest.mark.parametrize("spec", ["newest", "0.19.x", "==0.19.8"])
def test_spec_that_is_no_release_says_what_can_be_given(store, spec):
    with pytest.raises(UsageError, match="not understood") as caught:
        store.get(spec)
    assert "git+URL@REF" in caught.value.wanted


def test_nobody_listening_is_a_failed_probe(tmp_path):
    url = f"http://127.0.0.1:{closed_port()}/simple"
    with pytest.raises(ProbeError, match="gives no source distribution") as caught:
        a_store(tmp_path, f"global.index-url='{url}'").get("0.19.8")
    assert url in caught.value.wanted
    assert "--deepspeed /path" in caught.value.hint


@pytest.mark.parametrize("status", [500, 503, 403])
def test_index_that_answers_with_an_error_is_a_failed_probe(store, index, status, capfd):
    index.status = status
    with pytest.raises(ProbeError) as caught:
        store.get("0.19.8")
    assert str(status) in caught.value.found
    assert capfd.readouterr() == ("", "")


def test_project_unknown_to_the_index_is_a_failed_probe(store, index):
    index.status = 404
    with pytest.raises(ProbeError, match="gives no source") as caught:
        store.get("")
    assert "no source distribution of deepspeed listed" in caught.value.found


def test_transfer_that_breaks_off_leaves_nothing(store, index):
    index.add("deepspeed-0.19.8.tar.gz", sdist())
    index.truncated.add("deepspeed-0.19.8.tar.gz")
    with pytest.raises(ProbeError):
        store.get("0.19.8")
    assert entries(store) == []
    index.truncated.clear()
    assert store.get("0.19.8").version == "0.19.8"


def test_redirects_are_followed(store, index):
    index.add("deepspeed-0.19.8.tar.gz", sdist())
    index.redirects = True
    assert store.get("0.19.8").version == "0.19.8"
    assert any(path.startswith("/moved/files/") for path in index.requests)


def test_password_of_an_index_is_used_and_never_shown(tmp_path, index):
    index.add("deepspeed-0.19.8.tar.gz", sdist())
    index.password = "me:secret"
    url = index.url.replace("://", "://me:secret@")
    tree = a_store(tmp_path, f"global.index-url='{url}'").get("0.19.8")
    assert "secret" not in repr(tree)
    index.files.clear()
    with pytest.raises(ProbeError) as caught:
        a_store(tmp_path / "other", f"global.index-url='{url}'").get("0.19.8")
    assert "secret" not in str(caught.value)


def test_wrong_password_is_a_failed_probe_that_does_not_ask(tmp_path, index):
    index.password = "me:secret"
    with pytest.raises(ProbeError) as caught:
        a_store(tmp_path, f"global.index-url='{index.url}'").get("0.19.8")
    assert "401" in caught.value.found


# --- the store


def test_kept_release_needs_no_second_fetch_and_no_index(store, index):
    index.add("deepspeed-0.19.8.tar.gz", sdist())
    first = store.get("0.19.8")
    asked = len(index.requests)
    assert store.get("0.19.8") == store.get("v0.19.8") == first
    assert len(index.requests) == asked


@pytest.mark.parametrize("text", [None, "", "{", '{"version": "0.19.8"}', "[1]"])
def test_half_written_entry_of_the_store_is_ignored(store, index, text):
    index.add("deepspeed-0.19.8.tar.gz", sdist())
    half = store.folder / "release-0.19.8"
    (half / "tree").mkdir(parents=True)
    if text is not None:
        (half / "source.json").write_text(text)
    tree = store.get("0.19.8")
    assert (Path(tree.path) / "version.txt").exists()
    assert index.downloads() == 1


def test_tree_put_there_meanwhile_stays(store, index, monkeypatch):
    """A second deepbuild finishes first, and its build copies the tree: it must not go away."""
    index.add("deepspeed-0.19.8.tar.gz", sdist())
    kept = store.get("0.19.8")
    inode = Path(kept.path).stat().st_ino
    answers = iter([None, None, kept])
    monkeypatch.setattr(Store, "_kept", lambda self, key: next(answers))
    store.get("0.19.8")
    assert Path(kept.path).stat().st_ino == inode


def test_newest_release_is_believed_for_a_while_and_not_longer(tmp_path, index):
    clock = [1e9]
    store = a_store(tmp_path, f"global.index-url='{index.url}'", lambda: clock[0])
    index.add("deepspeed-0.19.7.tar.gz", sdist("0.19.7"))
    assert store.get("").version == "0.19.7"
    index.add("deepspeed-0.19.8.tar.gz", sdist("0.19.8"))
    asked = len(index.requests)
    clock[0] += NEWEST_KNOWN_FOR - 1
    assert store.get("").version == "0.19.7"
    assert len(index.requests) == asked
    clock[0] += 2
    assert store.get("").version == "0.19.8"


def test_newest_noted_in_the_future_is_not_believed(tmp_path, index):
    index.add("deepspeed-0.19.8.tar.gz", sdist())
    store = a_store(tmp_path, f"global.index-url='{index.url}'")
    store.folder.mkdir()
    (store.folder / "newest.json").write_text('{"version": "0.19.7", "at": 2e9}')
    assert store.get("").version == "0.19.8"


def test_cache_that_cannot_be_written_is_a_failed_probe(tmp_path, index):
    index.add("deepspeed-0.19.8.tar.gz", sdist())
    (tmp_path / "file").write_text("")
    store = a_store(tmp_path / "file", f"global.index-url='{index.url}'")
    with pytest.raises(ProbeError, match="cannot be kept") as caught:
        store.get("")
    assert "DEEPBUILD_CACHE_DIR" in caught.value.hint


# --- hostile archives

TOP = "deepspeed-0.19.8"
OUTSIDE = Path(tempfile.gettempdir(), f"hostile-{os.getpid()}")
GOOD = [member(f"{TOP}/{name}", text.encode()) for name, text in tree_files().items()]
HOSTILE = {
    "absolute path": archive([*GOOD, member(str(OUTSIDE), b"x")]),
    "parent folder": archive([*GOOD, member(f"{TOP}/../../../hostile", b"x")]),
    "link outside": archive(
        [*GOOD, member(f"{TOP}/link", kind=tarfile.SYMTYPE, link="../../../../etc/passwd")]
    ),
    "absolute link": archive(
        [*GOOD, member(f"{TOP}/link", kind=tarfile.SYMTYPE, link="/etc/passwd")]
    ),
    "write through link": archive(
        [
            *GOOD,
            member(f"{TOP}/out", kind=tarfile.SYMTYPE, link="../../.."),
            member(f"{TOP}/out/hostile", b"x"),
        ]
    ),
    "hard link outside": archive(
        [*GOOD, member(f"{TOP}/link", kind=tarfile.LNKTYPE, link="../../../etc/passwd")]
    ),
    "device": archive([*GOOD, member(f"{TOP}/null", kind=tarfile.CHRTYPE)]),
    "pipe": archive([*GOOD, member(f"{TOP}/pipe", kind=tarfile.FIFOTYPE)]),
    "two folders": archive([*GOOD, member("other/file", b"x")]),
    "one file": archive([member("deepspeed.py", b"x")]),
    "nothing": archive([]),
    "no archive": b"<html>please log in</html>",
    "cut short": sdist()[:-40],
    "empty file": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archive_is_refused_and_leaves_nothing(store, index, name, tmp_path):
    index.add("deepspeed-0.19.8.tar.gz", HOSTILE[name])
    before = sorted(tmp_path.rglob("*hostile*"))
    with pytest.raises(ProbeError):
        store.get("0.19.8")
    assert entries(store) == []
    assert sorted(tmp_path.rglob("*hostile*")) == before
    assert not OUTSIDE.exists()


@pytest.mark.parametrize(
    "name", ["absolute path", "parent folder", "link outside", "absolute link", "device", "pipe"]
)
def test_pythons_without_tar_filters_refuse_them_too(store, index, name, monkeypatch):
    monkeypatch.setattr(unpack, "_FILTER", {})
    index.add("deepspeed-0.19.8.tar.gz", HOSTILE[name])
    with pytest.raises(ProbeError, match="can be unpacked") as caught:
        store.get("0.19.8")
    assert "link, a device, or outside" in caught.value.found
    assert entries(store) == []


def test_pythons_without_tar_filters_unpack_plain_archives(store, index, monkeypatch):
    monkeypatch.setattr(unpack, "_FILTER", {})
    index.add("deepspeed-0.19.8.tar.gz", sdist())
    assert store.get("0.19.8").version == "0.19.8"


@pytest.mark.parametrize("limit", ["_MOST_BYTES", "_MOST_FILES"])
def test_absurdly_large_archive_is_refused_before_it_is_unpacked(store, index, limit, monkeypatch):
    monkeypatch.setattr(unpack, limit, 4)
    index.add("deepspeed-0.19.8.tar.gz", sdist())
    monkeypatch.setattr(tarfile.TarFile, "extractall", lambda *a, **k: pytest.fail("unpacked"))
    with pytest.raises(ProbeError, match="can be unpacked") as caught:
        store.get("0.19.8")
    assert "and more" in caught.value.found


def test_member_that_claims_a_terabyte_is_refused_at_once(store, index):
    huge = tarfile.TarInfo(f"{TOP}/huge")
    huge.size = 2**40
    data = tarfile.TarInfo.tobuf(huge) + b"\0" * 1024
    index.add("deepspeed-0.19.8.tar.gz", data)
    with pytest.raises(ProbeError, match="can be unpacked") as caught:
        store.get("0.19.8")
    assert str(2**40) in caught.value.found


def test_member_of_negative_size_does_not_read_forever(store, index):
    header = bytearray(tarfile.TarInfo.tobuf(tarfile.TarInfo(f"{TOP}/file")))
    header[124:136] = (b"\xff" * 11) + b"\x00"  # base-256: -256
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    index.add("deepspeed-0.19.8.tar.gz", bytes(header) * 3 + b"\0" * 1024)
    with pytest.raises(ProbeError, match="can be unpacked"):
        store.get("0.19.8")


@pytest.mark.parametrize(
    "left_out", ["setup.py", "version.txt", "op_builder", "deepspeed/ops/op_builder"]
)
def test_archive_of_something_else_is_refused(store, index, left_out):
    files = {n: t for n, t in tree_files().items() if not n.startswith(left_out)}
    index.add("deepspeed-0.19.8.tar.gz", sdist(files=files))
    with pytest.raises(UsageError, match="not a DeepSpeed source tree") as caught:
        store.get("0.19.8")
    assert left_out in caught.value.found
    assert entries(store) == []


# --- pip's configuration


def test_environment_wins_over_sections_in_any_order():
    lines = [
        ":env:.index-url='https://env'",
        "global.index-url='https://global'",
        "install.index-url='https://install'",
    ]
    for order in (lines, lines[::-1]):
        assert parse_config("\n".join(order)).index_urls == ("https://env",)
    assert parse_config("\n".join(lines[1:])).index_urls == ("https://install",)


def test_all_settings_of_pip_are_read():
    text = r"""
:env:.cert='/etc/ssl/corp.pem'
global.extra-index-url='https://two/simple\nhttps://three/simple'
global.find-links='/wheels https://links'
global.proxy='proxy.corp:3128'
install.trusted-host='two'
list.format='columns'
"""
    config = parse_config(text)
    default = index_module.DEFAULT_INDEX
    assert config.index_urls == (default, "https://two/simple", "https://three/simple")
    assert config.find_links == ("/wheels", "https://links")
    assert (config.cert, config.proxy) == ("/etc/ssl/corp.pem", "proxy.corp:3128")
    assert config.trusted_hosts == ("two",)


@pytest.mark.parametrize("value", ["1", "true", "True", "yes", "on"])
def test_no_index_leaves_only_find_links(value):
    text = f"global.extra-index-url='https://two'\nglobal.find-links='/w'\n:env:.no-index='{value}'"
    config = parse_config(text)
    assert (config.index_urls, config.find_links) == ((), ("/w",))


@pytest.mark.parametrize("value", ["0", "false", "no", ""])
def test_no_index_that_is_off_is_off(value):
    assert parse_config(f":env:.no-index='{value}'").index_urls == (index_module.DEFAULT_INDEX,)


def test_pip_that_does_not_answer_is_not_taken_for_the_public_index(tmp_path):
    """A broken pip.conf that names a mirror must not lead past the mirror."""
    with pytest.raises(ProbeError, match="pip cannot read its configuration"):
        read_config(LocalHost(), str(tmp_path / "python"))


def found_with(monkeypatch, **env: str) -> str:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return find_sdist(read_config(LocalHost(), sys.executable), "deepspeed", "0.19.8").url


def test_real_pip_names_the_index_and_extra_indexes(monkeypatch, index):
    index.add("deepspeed-0.19.8.tar.gz", sdist())
    dead = f"http://127.0.0.1:{closed_port()}/simple"
    url = found_with(monkeypatch, PIP_INDEX_URL=dead, PIP_EXTRA_INDEX_URL=index.url)
    assert url.startswith(index.root)


def test_real_pip_names_find_links(monkeypatch, tmp_path):
    (tmp_path / "deepspeed-0.19.8.tar.gz").write_bytes(sdist())
    url = found_with(monkeypatch, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
    assert url == (tmp_path / "deepspeed-0.19.8.tar.gz").as_uri()


def test_find_links_folder_is_a_source(tmp_path):
    (tmp_path / "deepspeed-0.19.8.tar.gz").write_bytes(sdist())
    store = a_store(tmp_path, f"global.no-index='1'\nglobal.find-links='{tmp_path}'")
    tree = store.get("")
    assert tree.version == "0.19.8"
    assert "from this disk (the index gives no hash)" in tree.origin


def test_find_links_that_are_gone_are_said(tmp_path):
    with pytest.raises(ProbeError, match="gives no source distribution") as caught:
        a_store(tmp_path, "global.no-index='1'\nglobal.find-links='/gone'").get("")
    assert "/gone" in caught.value.wanted


def test_dead_index_does_not_hide_what_others_have(tmp_path, index):
    index.add("deepspeed-0.19.7.tar.gz", sdist("0.19.7"))
    dead = f"http://127.0.0.1:{closed_port()}/simple"
    text = f"global.index-url='{dead}'\nglobal.extra-index-url='{index.url}'"
    assert a_store(tmp_path, text).get("0.19.7").version == "0.19.7"
    with pytest.raises(ProbeError) as caught:  # the dead one may have it: not the user's mistake
        a_store(tmp_path, text).get("0.19.8")
    assert dead in caught.value.found


def test_newest_of_several_indexes_wins(tmp_path, index):
    index.add("deepspeed-0.19.7.tar.gz", sdist("0.19.7"))
    with serving(Index()) as other:
        other.add("deepspeed-0.19.8.tar.gz", sdist("0.19.8"))
        text = f"global.index-url='{index.url}'\nglobal.extra-index-url='{other.url}'"
        assert a_store(tmp_path, text).get("").version == "0.19.8"


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_proxy_is_asked_for_page_and_file(index, tmp_path, scheme):
    index.add("deepspeed-0.19.8.tar.gz", sdist())
    proxy = scheme + index.root.removeprefix("http://")
    far = f"http://localhost:{closed_port()}/simple"
    text = f"global.index-url='{far}'\nglobal.proxy='{proxy}'"
    assert a_store(tmp_path, text).get("0.19.8").version == "0.19.8"
    assert len(index.requests) == 2
    assert all(path.startswith(far.removesuffix("/simple")) for path in index.requests)


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl to make a certificate with")
@pytest.mark.parametrize("kind", ["file", "none", "gone"])
def test_certificate_of_the_configuration_is_trusted(tmp_path, kind):
    pem = tmp_path / "both.pem"
    name = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    key = (
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    )
    files = ("-keyout", str(pem), "-out", str(tmp_path / "cert.pem"))
    subprocess.run(["openssl", *key, *name, *files], check=True, capture_output=True)
    pem.write_text(pem.read_text() + (tmp_path / "cert.pem").read_text())
    with serving(Index(), pem) as index:
        index.add("deepspeed-0.19.8.tar.gz", sdist())
        cert = {"file": f"{tmp_path}/cert.pem", "none": "", "gone": "/gone.pem"}[kind]
        store = a_store(tmp_path, f"global.index-url='{index.url}'\nglobal.cert='{cert}'")
        if kind == "file":
            assert store.get("0.19.8").version == "0.19.8"
        else:
            with pytest.raises(ProbeError):
                store.get("0.19.8")


# --- folders


@pytest.fixture
def tree(tmp_path):
    return write_tree(tmp_path / "DeepSpeed", tree_files())


def test_folder_is_copied_and_named_by_its_content(tree, store):
    kept = store.get(str(tree))
    assert kept.version == "0.19.8"
    assert kept.spec == kept.origin == str(tree)
    assert kept.digest == f"tree:{folder_digest(tree)}"
    (tree / "csrc/adam/cpu_adam.cpp").write_text("changed")
    assert (Path(kept.path) / "csrc/adam/cpu_adam.cpp").read_text() != "changed"
    assert store.get(str(tree)).digest != kept.digest


def test_digest_does_not_depend_on_place_time_or_what_a_build_left(tree, tmp_path):
    before = folder_digest(tree)
    other = tmp_path / "elsewhere"
    shutil.copytree(tree, other)
    for name in ("build/temp/x.o", "dist/x.whl", "deepspeed.egg-info/PKG-INFO", ".git/HEAD"):
        write_tree(other, {name: "left"})
    write_tree(
        other,
        {
            "deepspeed/ops/adam/cpu_adam_op.cpython-311.so": "left",
            "deepspeed/__pycache__/x.pyc": "left",
            "deepspeed/git_version_info_installed.py": "left",
        },
    )
    os.utime(other / "setup.py", (1, 1))
    assert folder_digest(other) == before


@pytest.mark.parametrize("change", ["content", "name", "new", "link", "moved byte"])
def test_digest_changes_with_the_content(tree, change):
    before = folder_digest(tree)
    file = tree / "csrc/adam/cpu_adam.cpp"
    if change == "content":
        file.write_text("int answer() { return 43; }\n")
    elif change == "name":
        file.rename(file.with_name("cpu_adagrad.cpp"))
    elif change == "new":
        write_tree(tree, {"csrc/new.h": ""})
    elif change == "moved byte":
        write_tree(tree, {"csrc/a": "xy", "csrc/b": "z"})
        before = folder_digest(tree)
        write_tree(tree, {"csrc/a": "x", "csrc/b": "yz"})
    else:
        (tree / "link").symlink_to("csrc")
    assert folder_digest(tree) != before


def test_copy_keeps_links_and_leaves_out_what_a_build_left(tree, tmp_path):
    (tree / "deepspeed/csrc").symlink_to("../csrc")
    (tree / "file-link").symlink_to("setup.py")
    (tree / "dangling").symlink_to("/gone")
    write_tree(tree, {"build/lib/x.py": "", "csrc/x.o": "", "csrc/a.so": ""})
    copy_tree(tree, tmp_path / "copy")
    copy = tmp_path / "copy"
    assert (copy / "deepspeed/csrc").readlink() == Path("../csrc")
    assert (copy / "file-link").readlink() == Path("setup.py")
    assert (copy / "dangling").readlink() == Path("/gone")
    assert not any((copy / name).exists() for name in ("build", "csrc/x.o", "csrc/a.so"))
    assert folder_digest(copy) == folder_digest(tree)


def test_odd_entries_of_a_folder_do_no_harm(tree, store):
    os.mkfifo(tree / "pipe")  # reading it would wait for ever
    os.close(os.open(os.fsencode(tree) + b"/caf\xe9.txt", os.O_CREAT))
    kept = store.get(str(tree))
    assert not (Path(kept.path) / "pipe").exists()


@pytest.mark.parametrize("spec", ["./gone", "/gone/DeepSpeed", "~/gone-deepbuild"])
def test_folder_that_is_not_there_is_said(store, spec):
    with pytest.raises(UsageError, match="not a DeepSpeed source tree") as caught:
        store.get(spec)
    assert caught.value.found == "no such folder"


@pytest.mark.parametrize("text", ["", "nonsense", "0.19.8\n0.19.9", "\xff"])
def test_folder_with_a_bad_version_is_refused(store, tree, text):
    (tree / "version.txt").write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match="holds no version"):
        store.get(str(tree))


def test_folder_whose_version_cannot_be_read_is_said(store, tree):
    (tree / "version.txt").unlink()
    (tree / "version.txt").mkdir()
    with pytest.raises(UsageError, match="not a DeepSpeed source tree") as caught:
        store.get(str(tree))
    assert "no version.txt" in caught.value.found


def test_folder_of_an_old_release_is_refused(store, tree):
    (tree / "version.txt").write_text("0.9.5\n")
    with pytest.raises(UsageError, match="older than deepbuild supports"):
        store.get(str(tree))


# --- git


@pytest.fixture
def repo(tmp_path, monkeypatch):
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "toy")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "toy@example.org")
    folder = write_tree(tmp_path / "repo", tree_files("0.19.7"))
    git(folder, "init", "--quiet", "--initial-branch=master")
    commit(folder)
    git(folder, "tag", "v0.19.7")
    git(folder, "branch", "frozen")
    (folder / "version.txt").write_text("0.19.8\n")
    commit(folder)
    git(folder, "tag", "-a", "v0.19.8", "-m", "annotated")
    return folder


def git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *args], check=True, capture_output=True)
    return done.stdout.decode().strip()


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "toy")


@pytest.mark.parametrize(
    ("ref", "version"),
    [("", "0.19.8"), ("@master", "0.19.8"), ("@frozen", "0.19.7"), ("@v0.19.7", "0.19.7")],
)
def test_branch_tag_and_default_of_a_repository(store, repo, ref, version):
    tree = store.get(f"git+{repo.as_uri()}{ref}")
    assert tree.version == version
    head = git(repo, "rev-parse", (ref or "@HEAD")[1:])
    assert tree.digest == f"git:{head}"
    assert tree.spec == f"git+{repo.as_uri()}@{head}"
    assert not (Path(tree.path) / ".git").exists()
    assert entries(store) == [f"git-{head}"]


def test_annotated_tag_means_its_commit(store, repo):
    tree = store.get(f"git+{repo.as_uri()}@v0.19.8")
    assert tree.digest == "git:" + git(repo, "rev-parse", "v0.19.8^{commit}")


def test_commit_is_kept_and_got_again_without_asking(store, repo):
    commit_id = git(repo, "rev-parse", "frozen")
    spec = f"git+{repo.as_uri()}@{commit_id}"
    first = store.get(spec)
    assert first.version == "0.19.7"
    shutil.rmtree(repo)
    assert store.get(first.spec) == first
    assert store.host.git_calls == ["fetch"]


def test_branch_that_has_not_moved_is_not_fetched_again(store, repo):
    for _ in range(2):
        store.get(f"git+{repo.as_uri()}@master")
    assert store.host.git_calls == ["ls-remote", "fetch", "ls-remote"]


def test_branch_that_moved_is_fetched(store, repo):
    store.get(f"git+{repo.as_uri()}@master")
    (repo / "version.txt").write_text("0.20.0\n")
    commit(repo)
    assert store.get(f"git+{repo.as_uri()}@master").version == "0.20.0"


def test_ref_that_is_not_there_is_said(store, repo):
    with pytest.raises(UsageError, match="has no v9") as caught:
        store.get(f"git+{repo.as_uri()}@v9")
    assert "git ls-remote" in caught.value.hint
    assert entries(store) == []


def test_repository_that_is_not_there_is_a_failed_probe(store, tmp_path):
    with pytest.raises(ProbeError, match="git cannot get"):
        store.get(f"git+{(tmp_path / 'gone').as_uri()}@master")


def test_commit_that_is_not_there_is_a_failed_probe(store, repo):
    with pytest.raises(ProbeError, match="git cannot get"):
        store.get(f"git+{repo.as_uri()}@{'0' * 40}")
    assert entries(store) == []


@pytest.mark.parametrize(
    "spec", ["git+--upload-pack=touch /tmp/x", "git+https://host/repo@--upload-pack=x", "git+-x"]
)
def test_options_cannot_be_smuggled_to_git(store, spec):
    with pytest.raises(UsageError, match="not understood"):
        store.get(spec)
    assert store.host.git_calls == []


@pytest.mark.parametrize(
    ("spec", "url", "ref"),
    [
        ("git+https://host/repo", "https://host/repo", ""),
        ("git+https://host/repo@main", "https://host/repo", "main"),
        ("git+https://me@host/repo@v1", "https://me@host/repo", "v1"),
        ("git+https://me@host/repo", "https://me@host/repo", ""),
        ("git+ssh://git@host/a/b.git@feature/x", "ssh://git@host/a/b.git", "feature/x"),
        ("git+file:///a/b@c", "file:///a/b", "c"),
    ],
)
def test_git_spec_is_split(spec, url, ref):
    assert parse_git(spec) == (url, ref)


def test_source_is_got_without_torch_or_deepspeed():
    """Trap 15: nothing of the tree is run, and torch is not needed."""
    code = "import sys, deepbuild.source; print({'torch', 'deepspeed'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    assert source.OLDEST.release[:2] == (0, 14)


def test_archive_of_another_release_than_named_is_refused(store, index):
    index.add("deepspeed-0.19.8.tar.gz", sdist("0.16.9"))
    with pytest.raises(ProbeError, match="not what its name says"):
        store.get("0.19.8")
    assert entries(store) == []


@pytest.mark.parametrize("ref", ["*", "H*", "a..b^", "x:y"])
def test_ref_that_is_a_pattern_is_refused(store, ref):
    with pytest.raises(UsageError, match="not understood"):
        store.get(f"git+file:///nowhere/repo@{ref}")
