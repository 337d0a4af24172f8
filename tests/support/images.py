"""Images of 3 x 2 pixels, written by Pillow 13.0.0."""

from __future__ import annotations

from base64 import b64decode, b64encode

IMAGES = {
    name: b64decode(text)
    for name, text in {
        "png": ("iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAIAAAASFvFNAAAAEElEQVR4nGP8zwAFTDAGAwATKQED8NgHhAAAAABJRU5ErkJggg=="),
        "jpeg": (
            "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1"
            "tdhbWGkJ6jq62rZ4C8ybqmx5moq6T/2wBDARweHigjKE4rK06kbl1upKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSk"
            "pKSkpKSkpKSkpKSkpKSkpKSkpKSkpKT/wgARCAACAAMDASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAAAAT/xA"
            "AVAQEBAAAAAAAAAAAAAAAAAAADBf/aAAwDAQACEAMQAAABnA0v/8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQAB"
            "BQJ//8QAFBEBAAAAAAAAAAAAAAAAAAAAAP/aAAgBAwEBPwF//8QAFBEBAAAAAAAAAAAAAAAAAAAAAP/aAAgBAgEBPw"
            "F//8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQAGPwJ//8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQABPyF/"
            "/9oADAMBAAIAAwAAABDz/8QAFBEBAAAAAAAAAAAAAAAAAAAAAP/aAAgBAwEBPxB//8QAFBEBAAAAAAAAAAAAAAAAAA"
            "AAAP/aAAgBAgEBPxB//8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQABPxB//9k="
        ),
        "gif": (
            "R0lGODlhAwACAIEAAP8AAAAAAAAAAAAAACH/C05FVFNDQVBFMi4wAwEAAAAsAAAAAAMAAgAACAYAAQgcGBAAIfkEAQ"
            "AAAQAsAAAAAAMAAgCBAAD/AAAAAAAAAAAACAYAAQgcGBAAOw=="
        ),
        "webp": ("UklGRjwAAABXRUJQVlA4IDAAAADQAQCdASoDAAIAAUAmJaACdLoB+AADsAD+8ut//NgVzXPv9//S4P0uD9Lg/9KQAAA="),
        "webp-lossless": "UklGRhwAAABXRUJQVlA4TA8AAAAvAkAAAAcQ/Y/+ByKi/wEA",
        "webp-alpha": (
            "UklGRl4AAABXRUJQVlA4WAoAAAAQAAAAAgAAAQAAQUxQSAcAAAAACQkJCQkJAFZQOCAwAAAA0AEAnQEqAwACAAFAJi"
            "WgAnS6AfgAA7AA/vLrf/zYFc1z7/f/0uD9Lg/S4P/SkAAA"
        ),
    }.items()
}
PNG = IMAGES["png"]
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>'


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{b64encode(data).decode()}"
