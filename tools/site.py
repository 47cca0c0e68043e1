#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Makes the documents a site of static files, with a search: site.py OUT (make site), with MkDocs and its theme Material.

The pages stay plain Markdown with relative links. They are copied into a new folder, as the tree has them, with all that they link to: README.md,
the pages of docs/ and the others that these lead to, pictures, and examples' files. MkDocs is told to fail at the first link that leads nowhere. Nothing is
fetched: neither while it builds, nor by a browser that shows it."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import pages

ROOT = pathlib.Path(__file__).resolve().parent.parent
WHOLE_LINK = re.compile(r"(?<!!)\[([^]]*)\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
LINK = re.compile(r"(!?\[[^]]*\]\()([^)#\s]+)")
# In the order of the menu, after README.md and those of docs/.
OTHERS = {"CONTRIBUTING.md": "Contributing", "SECURITY.md": "Security", "CHANGELOG.md": "Changes"}
STYLE = """:root { --md-primary-fg-color: #1e3a5f; --md-accent-fg-color: #0b6e99; }
.md-typeset table:not([class]) { font-size: .68rem; }
.md-typeset img { max-width: 100%; background: #fff; }
"""


def targets(path, text):
    """The files of the tree that a page leads to."""
    for found in LINK.finditer(pages.without_code(text)):
        if not re.match(r"[a-z]+:", found[2]):
            yield pathlib.PurePath(os.path.normpath(path.parent / found[2]))


def closure(all_pages):
    """All that the site has: the pages, and the files that they lead to."""
    waiting = [path for path in all_pages if path.parts[0] == "docs"] + [pathlib.PurePath(name) for name in ("README.md", *OTHERS)]
    found = set()
    while waiting:
        path = waiting.pop()
        if path in found or not (ROOT / path).exists():
            continue
        if (ROOT / path).is_dir():
            waiting += [each / "README.md" for each in (path,) if (ROOT / each / "README.md").exists()]
            continue
        found.add(path)
        if path in all_pages:
            waiting += targets(path, all_pages[path])
    return found


def copied(path, text, found):
    """The page, its links to folders changed: they lead to the folder's page, else only their text stays."""

    def link(match):
        there = pathlib.PurePath(os.path.normpath(path.parent / match[2])) if not re.match(r"[a-z]+:", match[2]) else None
        if there is None or not (ROOT / there).is_dir():
            return match[0]
        return f"[{match[1]}]({match[2].rstrip('/')}/README.md)" if there / "README.md" in found else match[1]

    return WHOLE_LINK.sub(link, text)


def navigation(all_pages):
    menu = [{"pgonce": "README.md"}]
    for _, title, _, groups in pages.listed(all_pages):
        entries = [(group, [{pages.opening(all_pages[path])[0].replace("`", ""): str(path)} for path in names]) for group, names in groups]
        menu.append({title: [each for group, inner in entries for each in ([{group: inner}] if group else inner)]})
    return menu + [{"All pages": "docs/README.md"}] + [{title: name} for name, title in OTHERS.items()]


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "site").resolve()
    all_pages = pages.pages()
    found = closure(all_pages)
    with tempfile.TemporaryDirectory(prefix="pgonce-site-") as place:
        source = pathlib.Path(place) / "pages"
        for path in found:
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            if path in all_pages:
                (source / path).write_text(copied(path, all_pages[path], found))
            else:
                shutil.copy(ROOT / path, source / path)
        (source / "site.css").write_text(STYLE)
        told = {
            "site_name": "pgonce",
            "site_description": "Idempotency keys, an outbox and an inbox, inside your PostgreSQL",
            "site_url": "",
            "docs_dir": str(source),
            "site_dir": str(out),
            "use_directory_urls": False,  # it can be read without a server, too, but for the search
            "theme": {"name": "material", "font": False, "features": ["navigation.sections", "navigation.top", "content.code.copy", "toc.follow"]},
            "extra_css": ["site.css"],
            "plugins": ["search"],
            "markdown_extensions": ["tables", "fenced_code", "attr_list", "sane_lists", "pymdownx.superfences", {"pymdownx.highlight": {"anchor_linenums": False}},
                                    {"toc": {"permalink": True, "slugify": "!!SLUGIFY!!"}}],
            "nav": navigation(all_pages),
        }  # fmt: skip
        # JSON is YAML, but for the name of a Python function.
        text = json.dumps(told, indent=1, ensure_ascii=False).replace('"!!SLUGIFY!!"', "!!python/name:slugs.slugify")
        (pathlib.Path(place) / "mkdocs.yml").write_text(text)
        # Anchors as Markdown's readers elsewhere name them (tools/pages.py checks those).
        (pathlib.Path(place) / "slugs.py").write_text("import re\n\n\ndef slugify(value, separator):\n    return re.sub(r'[^\\w\\- ]', '', value.strip().lower()).replace(' ', '-')\n")
        done = subprocess.run(["mkdocs", "build", "--strict", "--clean", "-f", pathlib.Path(place) / "mkdocs.yml"], env={**os.environ, "PYTHONPATH": place},
                              capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        wrong = [line for line in (done.stdout + done.stderr).split("\n") if line and not line.startswith("INFO")]
        sys.exit("\n".join([*wrong, "site.py: MkDocs has made no site"]))
    print(f"{len(list(out.rglob('*.html')))} pages in {os.path.relpath(out)}: open {os.path.relpath(out / 'index.html')}, or serve the folder to search in it")


if __name__ == "__main__":
    main()
