"""In the place of setuptools while a source archive is downloaded (environments.py): nothing is built or run of it."""
