"""The manifest of an artifact, and the key that is computed from it."""

import hashlib
import time

import pytest

from rolloutdeck.protocol import manifest

SHA = "ab" * 32


def test_the_key_is_the_sha256_of_sorted_compact_json_in_utf8():
    files = {"meta.json": {"sha256": SHA, "bytes": 20}, "é/gen_batch.dp": {"bytes": 3, "sha256": "cd" * 32}}
    expected = f'{{"meta.json":{{"bytes":20,"sha256":"{SHA}"}},"é/gen_batch.dp":{{"bytes":3,"sha256":"{"cd" * 32}"}}}}'
    assert manifest.serialize_manifest(files) == expected.encode()
    assert manifest.compute_artifact_key(files) == hashlib.sha256(expected.encode()).hexdigest()
    assert manifest.count_manifest_bytes(files) == 23


def test_the_key_depends_on_names_hashes_and_sizes_but_not_on_the_order_of_files():
    first, second = ("a", {"sha256": SHA, "bytes": 1}), ("b", {"sha256": "ef" * 32, "bytes": 2})
    key = manifest.compute_artifact_key(dict([first, second]))
    assert manifest.compute_artifact_key(dict([second, first])) == key
    others = [{"sha256": "cd" * 32, "bytes": 2}, {"sha256": "ef" * 32, "bytes": 3}]
    assert (
        len(
            {
                key,
                manifest.compute_artifact_key(dict([first, ("c", second[1])])),
                *(manifest.compute_artifact_key({"b": file}) for file in others),
            }
        )
        == 4
    )


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../x", "a/../../x", "a/./b", "a//b", "a/", ".", "..", "a\x00b", "a\\..\\b", "a\nb", "\ud800",
     "x" * 401],
)  # fmt: skip
def test_a_path_that_leads_out_of_the_folder_or_to_no_file_is_refused(path):
    with pytest.raises(ValueError, match=r"path|Path"):
        manifest.compute_artifact_key({path: {"sha256": SHA, "bytes": 1}})


@pytest.mark.parametrize(
    "file",
    [None, {}, {"sha256": SHA}, {"sha256": SHA.upper(), "bytes": 1}, {"sha256": SHA[:-1], "bytes": 1},
     {"sha256": SHA, "bytes": -1}, {"sha256": SHA, "bytes": True}, {"sha256": SHA, "bytes": 1.0},
     {"sha256": SHA, "bytes": 2**60}, {"sha256": SHA, "bytes": 1, "mode": 7}],
)  # fmt: skip
def test_a_file_needs_exactly_a_sha256_and_a_size(file):
    with pytest.raises(ValueError, match="a.dp"):
        manifest.compute_artifact_key({"a.dp": file})


@pytest.mark.parametrize("files", [{}, [], None, "a"])
def test_a_manifest_without_files_is_refused(files):
    with pytest.raises(ValueError, match="names 1 to"):
        manifest.compute_artifact_key(files)


def test_a_name_cannot_be_a_file_and_a_folder():
    file = {"sha256": SHA, "bytes": 1}
    with pytest.raises(ValueError, match="which the manifest lists as a file"):
        manifest.compute_artifact_key({"0": file, "0/tq_batch.pt": file})


def test_a_file_that_is_also_a_folder_is_found_whatever_sorts_between():
    file = {"sha256": SHA, "bytes": 1}
    manifest.check_manifest({"a": file, "a.b/c": file, "a-b": file})
    with pytest.raises(ValueError, match="'a/b/c' is below 'a'"):
        manifest.check_manifest({"a": file, "a.b/c": file, "a-b": file, "a/b/c": file})


def test_two_sizes_for_one_hash_are_refused():
    with pytest.raises(ValueError, match="two sizes"):
        manifest.check_manifest({"a": {"sha256": SHA, "bytes": 1}, "b": {"sha256": SHA, "bytes": 2}})


def test_the_longest_manifest_is_checked_quickly():
    deep = "a/" * 190
    files = {f"{deep}{n}": {"sha256": f"{n:064x}", "bytes": 1} for n in range(manifest.MAX_MANIFEST_FILES)}
    started = time.process_time()
    manifest.check_manifest(files)
    assert time.process_time() - started < 2
