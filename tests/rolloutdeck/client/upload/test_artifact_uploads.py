"""What waits on a node to be sent."""

from __future__ import annotations

from pathlib import Path

from rolloutdeck.client import artifact
from rolloutdeck.client.upload.artifact_uploads import ArtifactUploadQueue


def test_thousands_of_files_that_are_gone_are_given_up_one_after_the_other(tmp_path: Path) -> None:
    names = [f"{number}.json" for number in range(3000)]
    for name in names:
        (tmp_path / name).write_text(name)
    result = artifact.build_artifact(tmp_path, names, "rollout", 1)
    messages: list[str] = []
    queue = ArtifactUploadQueue(on_message=messages.append)
    queue.add(result, {file["sha256"] for file in result.files.values()})
    for name in names:
        (tmp_path / name).unlink()
    assert queue.upload_next(lambda *asked, **more: 1 / 0) is None  # type: ignore[arg-type, return-value]
    assert len(messages) == len(names) and not queue.pending_count
    assert [lost for lost, _ in queue.missing_artifacts] == [result]
