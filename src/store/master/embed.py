"""Writes a file as a C array: embed.py INPUT OUTPUT NAME [STYLE]. Not a string: C limits the length of those.

STYLE: a page's style, which is put into it where the link to it stands: one answer less that a browser waits for before it draws. NAME_style is its hash, by
which alone a policy lets it count.
"""
import base64
import hashlib
import sys

source, target, name, *style = sys.argv[1:]
with open(source, "rb") as file:
    data = file.read()
with open(target, "w") as file:
    file.write("#include <stddef.h>\n")
    if style:
        with open(style[0], "rb") as more:
            text = b"\n" + more.read()
        link = b'<link rel="stylesheet" href="style.css">'
        assert data.count(link) == 1 and b"</" not in text
        data = data.replace(link, b"<style>" + text + b"</style>")
        file.write(f"extern const char {name}_style[];\nconst char {name}_style[] = \"sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}\";\n")
    file.write(f"extern const unsigned char {name}[];\nextern const size_t {name}_size;\n")
    file.write(f"const unsigned char {name}[] = {{\n")
    for start in range(0, len(data), 24):
        file.write("    " + ",".join(str(byte) for byte in data[start:start + 24]) + ",\n")
    file.write(f"}};\nconst size_t {name}_size = sizeof({name});\n")
