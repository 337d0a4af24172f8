"""Scripts, styles and fonts: compressed where that helps, and cached if the URL names the version."""

from __future__ import annotations

import gzip
import posixpath
import re
from graphlib import TopologicalSorter
from pathlib import Path

import brotli
import pytest
from django.test import Client

from dashboard import assets

IMPORT = re.compile(r'^import .*"(\..+)";$', re.MULTILINE)
ANY_IMPORT = re.compile(r'(?:^import |\bfrom |\bimport\()"(\..+?)"', re.MULTILINE)
MAX_LINE = 140
# Does not count: a message, which gettext needs on one line, and a line with only one attribute, such as a long `href`.
MESSAGE = re.compile(
    r"(?<=%\})[^%]*(?:\{% plural %\}[^%]*)?(?=\{% endblocktranslate)"
    r'|(?<=translate )"[^"]*"|(?<=gettext\()"[^"]*"'
)
ATTRIBUTE = re.compile(r'\s*[\w-]+="(?:\{%.*?%\}|\{\{.*?\}\}|[^"])*"(?:\{% endif %\})?>?')
ROOT = Path(__file__).parents[2]
STATIC = ROOT / "static"
NESTED_TEMPLATE = re.compile(r"\$\{(?:[^{}`]|\{[^{}`]*\})*`")
UNPACK = {"br": brotli.decompress, "gzip": gzip.decompress}
VENDORED = "vendor/htmx.org@2.0.11/htmx.min.js"


def read_body(answer: object) -> bytes:
    return getattr(answer, "getvalue")()  # noqa: B009 - a streaming answer or a plain one


@pytest.mark.parametrize("name", ["css/base.css", "js/common/panel.js", VENDORED])
@pytest.mark.parametrize(("accepted", "encoding"), [("gzip, deflate, br;q=0.9", "br"), ("gzip", "gzip")])
def test_scripts_and_styles_are_sent_compressed(client: Client, name: str, accepted: str, encoding: str) -> None:
    response = client.get(f"/static/{name}", headers={"Accept-Encoding": accepted})
    assert response.headers["Content-Encoding"] == encoding
    assert "Accept-Encoding" in response.headers["Vary"]
    packed, written = read_body(response), (STATIC / name).read_bytes()
    assert len(packed) == int(response.headers["Content-Length"]) < len(written) / 3
    sent = UNPACK[encoding](packed)
    if name == "js/common/panel.js":
        assert len(sent) < len(written) and b"If-None-Match" in sent  # without comments
    else:
        assert sent == written


def test_no_script_has_a_template_within_a_template() -> None:
    """rjsmin reads the text of the inner template as code, and removes its spaces."""
    nested = "`${rows.map(({ name }) => `of  ${name}`)}`"
    assert NESTED_TEMPLATE.search(nested) and assets.minify("a.js", nested.encode()).decode() != nested
    found = [path.name for path in (STATIC / "js").rglob("*.js") if NESTED_TEMPLATE.search(path.read_text())]
    assert found == []


def test_a_client_without_compression_gets_the_plain_file(client: Client) -> None:
    response = client.get("/static/css/base.css")
    assert "Content-Encoding" not in response.headers
    assert read_body(response) == (STATIC / "css/base.css").read_bytes()


def test_an_unchanged_file_is_not_sent_again(client: Client) -> None:
    gzip_header = {"Accept-Encoding": "gzip"}
    last_modified = client.get("/static/js/common/panel.js", headers=gzip_header).headers["Last-Modified"]
    assert (
        client.get("/static/js/common/panel.js", headers=gzip_header | {"If-Modified-Since": last_modified}).status_code
        == 304
    )


def test_only_a_url_with_a_version_is_cached_forever(client: Client) -> None:
    assert "immutable" in client.get(f"/static/{VENDORED}").headers["Cache-Control"]
    assert "immutable" in client.get(assets.build_asset_url("js/common/panel.js")).headers["Cache-Control"]
    assert "immutable" not in client.get("/static/js/common/panel.js").headers["Cache-Control"]


def test_a_url_of_another_release_gets_the_current_file_and_is_not_cached(client: Client) -> None:
    response = client.get("/static/0123456789/js/common/panel.js")
    assert read_body(response) == (STATIC / "js/common/panel.js").read_bytes()
    assert "immutable" not in response.headers["Cache-Control"]


@pytest.mark.django_db
def test_pages_are_not_compressed(client: Client) -> None:
    assert "Content-Encoding" not in client.get("/sign-in/", headers={"Accept-Encoding": "gzip"}).headers


def test_a_page_preloads_everything_that_its_scripts_import() -> None:
    tags = assets.render_module_script("sample_page.js", preload="review/viewed.js")
    requested = set(re.findall(r'modulepreload" href="[^"]*/js/([\w/]+\.js)"', tags))
    assert {"sample/reader.js", "sample/prefetch.js", "common/panel.js", "review/viewed.js"} <= requested
    assert tags.endswith(f'<script src="{assets.build_asset_url("js/sample_page.js")}" type="module"></script>')
    for name in requested:
        text = (STATIC / "js" / name).read_text()
        assert {
            posixpath.normpath(f"{posixpath.dirname(name)}/{item}") for item in IMPORT.findall(text)
        } <= requested, name


@pytest.fixture(scope="module")
def script_imports() -> dict[Path, set[Path]]:
    """{script: the scripts that it imports}. Imports that run later, in `import("...")`, count too."""
    graph = {
        path: {(path.parent / address).resolve() for address in ANY_IMPORT.findall(path.read_text())}
        for path in (STATIC / "js").rglob("*.js")
    }
    assert sum(len(imported) for imported in graph.values()) > 100
    return graph


def test_scripts_have_no_import_cycle(script_imports: dict[Path, set[Path]]) -> None:
    assert {path for imported in script_imports.values() for path in imported if not path.is_file()} == set()
    TopologicalSorter(script_imports).prepare()


def test_folders_of_scripts_have_no_import_cycle(script_imports: dict[Path, set[Path]]) -> None:
    """Scripts directly in `js/` are entry scripts: they may import every folder, and no script imports them."""
    top = STATIC / "js"
    graph: dict[Path, set[Path]] = {}
    for path, imported in script_imports.items():
        folders = {other.parent for other in imported if other.is_relative_to(top)}
        assert top not in folders, f"{path} imports an entry script"
        if path.parent != top:
            graph.setdefault(path.parent, set()).update(folders - {path.parent})
    assert len(graph) > 10
    TopologicalSorter(graph).prepare()


def test_contributing_names_each_event_of_the_scripts() -> None:
    scripts = "".join(path.read_text() for path in (STATIC / "js").rglob("*.js"))
    sent = set(re.findall(r'"(deck:[a-z-]+)"', scripts))
    described = set(re.findall(r"`(deck:[a-z-]+)`", (ROOT / "CONTRIBUTING.md").read_text()))
    assert sent == described


def test_folders_have_the_names_of_the_features() -> None:
    features = {path.parent.name for path in (ROOT / "dashboard" / "pages").glob("*/__init__.py")}
    assert {"runs", "step", "sample", "pins", "common"} <= features
    assert {path.name for path in (STATIC / "js").iterdir() if path.is_dir()} <= features
    assert {path.name for path in (ROOT / "templates").iterdir() if path.is_dir()} <= features | {"api"}


def test_lines_are_short_enough_for_a_review() -> None:
    files = [*(ROOT / "templates").rglob("*.html"), *(STATIC / "css").glob("*.css"), *(STATIC / "js").rglob("*.js")]
    assert len(files) > 150
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(MESSAGE.sub("", line)) > MAX_LINE and not ATTRIBUTE.fullmatch(line)
    ]
    assert long == [], "\n".join(long)


def test_the_indentation_of_templates_is_not_sent(client: Client) -> None:
    source = (ROOT / "templates" / "error.html").read_text()
    assert re.search("^ +<", source, re.MULTILINE)
    page = client.get("/no-such-page/").content.decode()
    assert "</html>" in page and not re.search("^ +<", page, re.MULTILINE)


NO_SIGNS = str.maketrans({'"': "'", "<": " ", ">": " "})
MARKUP_FILTERS = re.compile(r"\|(line|plain|code_spans)\b")  # their result may have elements


def test_no_attribute_has_markup_in_its_value() -> None:
    """A control character of a text would end the tag. Attributes use `printable`."""
    found = []
    for path in Path("templates").rglob("*.html"):
        text = re.sub(r"\{[%{].*?[%}]\}", lambda tag: tag[0].translate(NO_SIGNS), path.read_text(), flags=re.DOTALL)
        values = (value for tag in re.findall(r"<[a-z][^<>]*>", text) for value in re.findall(r'="([^"]*)"', tag))
        found += [f"{path}: {value[:60]}" for value in values if MARKUP_FILTERS.search(value)]
    assert not found
