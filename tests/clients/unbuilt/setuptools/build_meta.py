"""pip asks this for the metadata of a source archive before it keeps it: they are what the archive itself says in PKG-INFO."""
import email.parser
import pathlib
import shutil


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):  # pylint: disable=unused-argument
    said = email.parser.Parser().parsestr(pathlib.Path("PKG-INFO").read_text(encoding="utf-8"), headersonly=True)
    folder = pathlib.Path(metadata_directory) / f"{said['Name']}-{said['Version']}.dist-info"
    folder.mkdir()
    shutil.copy("PKG-INFO", folder / "METADATA")
    return folder.name
