"""Writes a file as a C array: embed.py INPUT OUTPUT NAME. Not a string: C limits the length of those."""
import sys

source, target, name = sys.argv[1:]
with open(source, "rb") as file:
    data = file.read()
with open(target, "w") as file:
    file.write("#include <stddef.h>\n")
    file.write(f"extern const unsigned char {name}[];\nextern const size_t {name}_size;\n")
    file.write(f"const unsigned char {name}[] = {{\n")
    for start in range(0, len(data), 24):
        file.write("    " + ",".join(str(byte) for byte in data[start:start + 24]) + ",\n")
    file.write(f"}};\nconst size_t {name}_size = sizeof({name});\n")
