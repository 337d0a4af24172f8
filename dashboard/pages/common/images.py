"""The images of a sample as pages show them: a thumbnail with a link to the full size, or why there is none."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.urls import reverse
from django.utils.translation import gettext as _

from rollouts.samples import SampleImage


@dataclass(frozen=True, slots=True)
class ShownImage:
    """`url` is the address of the image on this server, or a data URL in an exported file; empty without bytes."""

    image: SampleImage
    url: str

    @property
    def caption(self) -> str:
        image = self.image
        size = _("{kilobytes} kB").format(kilobytes=f"{max(1, image.bytes // 1000):,}")
        return f"{image.origin} · {image.kind.upper()} · {image.width:,} × {image.height:,} · {size}"


def build_shown_images(images: Iterable[SampleImage], sample_id: str) -> list[ShownImage]:
    """The images of a sample, with the addresses under which its users may load them."""
    return [
        ShownImage(image, reverse("sample-image", args=[sample_id, image.sha256]) if image.sha256 else "")
        for image in images
    ]
