"""What mkdocs needs to make a site of documents that link to sources.

Documents outside docs/ become pages of the site. Any other file of the repository to which a
document links is copied into the site, as text.
"""

import os
import posixpath
import re

from mkdocs.structure.files import File

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUTSIDE = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "exercises/README.md",
           "samples/README.md"]
LINK = re.compile(r"\]\(([^)\s:]+)\)")
CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def slug(heading, _separator):
    """Anchors as on GitHub, for which the links were written."""
    return re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")


def path_of(page):
    """The path of a page of the site in the repository."""
    return page if page in OUTSIDE else "docs/" + page


def target_of(link, page):
    """The path in the repository to which a link of a page leads, and its anchor."""
    target, _, anchor = link.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(path_of(page)), target))
    if os.path.isdir(os.path.join(ROOT, path)):
        path += "/README.md"
    return path, "#" + anchor if anchor else ""


def in_site(path):
    """What mkdocs calls a file of the repository."""
    shown = path.startswith("docs/") and path.endswith((".md", ".png", ".svg"))
    return path[len("docs/"):] if shown else path


def links_of(text):
    for block in CODE.split(text):
        if not block.startswith("```"):
            yield from (link for link in LINK.findall(block) if not link.startswith("#"))


def on_config(config):
    config["mdx_configs"]["toc"] = {"slugify": slug}
    return config


def on_files(files, config):
    def add(path):
        file = File(path, ROOT, config["site_dir"], config["use_directory_urls"])
        if not path.endswith(".md"):
            file.dest_uri = file.url = "source/" + path + ".txt"
            file.abs_dest_path = os.path.join(config["site_dir"], file.dest_uri)
        files.append(file)

    for file in list(files):
        ours = file.abs_src_path.startswith(config["docs_dir"])  # and not the theme's
        if ours and not file.src_uri.endswith((".md", ".png", ".svg")):
            files.remove(file)
    for path in OUTSIDE:
        add(path)
    for page in [file.src_uri for file in files if file.src_uri.endswith(".md")]:
        with open(os.path.join(ROOT, path_of(page)), encoding="utf-8") as text:
            for link in links_of(text.read()):
                path, _ = target_of(link, page)
                if files.get_file_from_path(in_site(path)) is None:
                    add(path)
    return files


def on_page_markdown(markdown, page, **_):
    here = page.file.src_uri

    def site_link(match):
        if match[1].startswith("#"):
            return match[0]
        path, anchor = target_of(match[1], here)
        return f"]({posixpath.relpath(in_site(path), posixpath.dirname(here) or '.')}{anchor})"

    return "".join(block if block.startswith("```") else LINK.sub(site_link, block)
                   for block in CODE.split(markdown))
