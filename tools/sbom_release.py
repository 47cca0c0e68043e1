# SPDX-License-Identifier: PostgreSQL
"""The bill of materials of a release, SPDX 2.3 in JSON: each file of dist/ with its hash, as the package that it is for its own system, and what that
package says it needs. tools/release.py calls it. It reads the finished files, not what they were made from; tools/sbom.py does the same for what a build
installs."""

import datetime
import email.parser
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import uuid
import xml.etree.ElementTree
import zipfile

LICENCE = "PostgreSQL"
POM = "{http://maven.apache.org/POM/4.0.0}"


class Needs(dict):
    """purl: (name, the versions that are wanted, or "")"""

    def add(self, kind, name, wanted=""):
        self[f"pkg:{kind}/{name}"] = (name, wanted.strip())


def text(files, release, when):
    """files: path by name."""
    pgonce = package("SPDXRef-pgonce", "pgonce", release, f"pkg:generic/pgonce@{release}")
    packages, relations, needed = [pgonce], [("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-pgonce")], {}
    for name in sorted(files, key=lambda name: name.encode()):
        purl, needs = read(name, pathlib.Path(files[name]), release)
        each = package("SPDXRef-File-" + identifier(name), name, release, purl)
        each |= {"packageFileName": name, "checksums": [{"algorithm": "SHA256", "checksumValue": hashlib.sha256(files[name].read_bytes()).hexdigest()}]}
        packages.append(each)
        relations.append(("SPDXRef-pgonce", "CONTAINS", each["SPDXID"]))
        for other, (title, wanted) in needs.items():
            one = "SPDXRef-Need-" + identifier(other, wanted)
            needed[one] = package(one, title, wanted or "NOASSERTION", other, licence="NOASSERTION")
            relations.append((each["SPDXID"], "DEPENDS_ON", one))
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"pgonce-{release}",
        "comment": "The files of a release. The dependencies are those that each package declares, with the versions that it declares; their own dependencies are not listed.",
        "creationInfo": {
            "created": datetime.datetime.fromtimestamp(when, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: pgonce-tools-sbom_release.py"],
        },
        "packages": packages + [needed[one] for one in sorted(needed)],
        "relationships": [{"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other} for one, kind, other in relations],
    }
    named = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(document, sort_keys=True))
    return json.dumps({**document, "documentNamespace": f"urn:uuid:{named}"}, indent=1) + "\n"


def package(spdx, name, version, purl, licence=LICENCE):
    told = {
        "SPDXID": spdx,
        "name": name,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": licence,
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}],
    }
    return told | ({"versionInfo": version} if version != "NOASSERTION" else {})


def identifier(*words):
    """Different for different words, though few characters are allowed."""
    plain = "-".join(word for word in words if word)
    short = re.sub(r"[^A-Za-z0-9.]+", "-", plain).strip("-")
    return short if short == plain else f"{short}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"


def read(name, path, release):
    """(purl, Needs) of a file, by its name's ending."""
    for ending, reader in READERS.items():
        if name.endswith(ending):
            return reader(name, path, release)
    return f"pkg:generic/pgonce/{name}@{release}", Needs()


def debian(name, path, release):
    done = subprocess.run(["dpkg-deb", "-f", path, "Package", "Version", "Architecture", "Depends", "Pre-Depends"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"make release: {name} is no package of Debian: {done.stderr.strip()}")
    fields, needs = email.parser.Parser().parsestr(done.stdout), Needs()
    for each in filter(None, f"{fields.get('Pre-Depends', '')}, {fields.get('Depends', '')}".replace("\n", " ").split(", ")):
        first = re.match(r"\s*([\w.+-]+)(?::\w+)?\s*(?:\(([^)]*)\))?", each.split("|")[0])
        if first:
            needs.add("deb/debian", first[1], first[2] or "")
    return f"pkg:deb/debian/{fields['Package']}@{fields['Version'].replace('+', '%2B')}?arch={fields['Architecture']}", needs


def python(metadata):
    fields, needs = email.parser.Parser().parsestr(metadata), Needs()
    for each in fields.get_all("Requires-Dist") or []:
        found = re.match(r"([\w.-]+)(?:\[[^\]]*\])?\s*\(?([^;)]*)", each)
        needs.add("pypi", found[1].lower(), found[2])
    return f"pkg:pypi/{fields['Name']}@{fields['Version']}", needs


def wheel(_name, path, _release):
    with zipfile.ZipFile(path) as archive:
        return python(archive.read(next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))).decode())


def sdist(name, path, release):
    with tarfile.open(path) as archive:
        told = [each for each in archive.getnames() if each.count("/") == 1 and each.endswith("/PKG-INFO")]
        return python(archive.extractfile(told[0]).read().decode()) if told else (f"pkg:generic/pgonce/{name}@{release}", Needs())


def node_or_chart(_name, path, release):
    with tarfile.open(path) as archive:
        names, needs = archive.getnames(), Needs()
        if "package/package.json" not in names:
            return f"pkg:helm/pgonce@{release}", needs
        told = json.loads(archive.extractfile("package/package.json").read())
    for kind in ("dependencies", "peerDependencies", "optionalDependencies"):
        for other, wanted in told.get(kind, {}).items():
            needs.add("npm", other.replace("@", "%40"), wanted)
    return f"pkg:npm/{told['name'].replace('@', '%40')}@{told['version']}", needs


def pom(_name, path, _release):
    top, needs = xml.etree.ElementTree.parse(path).getroot(), Needs()
    for each in top.iterfind(f"{POM}dependencies/{POM}dependency"):
        if each.findtext(f"{POM}scope") != "test":
            needs.add("maven", f"{each.findtext(POM + 'groupId')}/{each.findtext(POM + 'artifactId')}", each.findtext(f"{POM}version") or "")
    return f"pkg:maven/{top.findtext(POM + 'groupId')}/{top.findtext(POM + 'artifactId')}@{top.findtext(POM + 'version')}?type=pom", needs


def jar(name, path, release):
    beside = sorted(path.parent.glob("*.pom"), key=lambda each: -len(each.stem))
    mine = next((each for each in beside if name.startswith(each.stem)), None)
    if not mine:
        return f"pkg:maven/{name.removesuffix('.jar')}@{release}", Needs()
    purl, needs = pom(mine.name, mine, release)
    kind = name.removesuffix(".jar")[len(mine.stem):].strip("-")
    return purl.split("?")[0] + (f"?classifier={kind}" if kind else ""), Needs() if kind else needs


def go(name, path, release):
    needs, modules = Needs(), []
    with zipfile.ZipFile(path) as archive:
        for each in sorted(archive.namelist()):
            if each.endswith("go.mod") or each.endswith(".mod"):
                told = archive.read(each).decode()
                modules += re.findall(r"^module (\S+)$", told, re.M)
                for other, wanted in re.findall(r"^(?:require)?\s+([\w.-]+\.[\w./-]+) (v\S+)(?! // indirect)$", told, re.M):
                    needs.add("golang", other, wanted)
    for module in modules:
        needs.pop(f"pkg:golang/{module}", None)
    return f"pkg:golang/{modules[0]}@v{release}" if modules else f"pkg:generic/pgonce/{name}@{release}", needs


def container(name, path, release):
    needs = Needs()
    told = path.read_text(encoding="utf-8")
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", told, re.M))
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", told, re.M))
    for image in re.findall(r"^FROM (\S+)", told, re.M):
        image = re.sub(r"\$\{?(\w+)\}?", lambda each: arguments.get(each[1], ""), image)
        if image and image != "scratch" and image not in stages:
            repository, _, tag = image.rsplit("/", 1)[-1].partition(":")
            needs.add("docker", repository, tag)
    return f"pkg:generic/pgonce/{name}@{release}", needs


READERS = {".deb": debian, ".whl": wheel, ".tar.gz": sdist, ".tgz": node_or_chart, ".pom": pom, ".jar": jar, ".zip": go, "Containerfile": container, "Containerfile.nginx": container}
