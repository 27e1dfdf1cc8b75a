# SPDX-License-Identifier: Apache-2.0
"""What the small types of mooncake.store and mooncake.engine have in common: they are as closed as the types of an extension."""


def full_name(cls):
    return f"{cls.__module__}.{cls.__name__}"


class Small:
    """Neither copied nor pickled."""

    __slots__ = ()

    def __reduce_ex__(self, protocol):
        raise TypeError(f"cannot pickle {full_name(type(self))!r} object")


class Final(Small):
    """And not to be derived from."""

    __slots__ = ()

    def __init_subclass__(cls):
        if cls.__base__.__module__ != __name__:
            raise TypeError(f"type {full_name(cls.__base__)!r} is not an acceptable base type")


class Record(Final):
    """Fields that nobody assigns. Only the store makes one, with made()."""

    __slots__ = ("_fields",)

    def __new__(cls, *args, **keywords):
        raise TypeError(f"{cls!r} is only made by the store")

    def __setattr__(self, name, value=None):
        raise AttributeError("readonly attribute" if hasattr(type(self), name) else f"{full_name(type(self))!r} object has no attribute {name!r}")

    __delattr__ = __setattr__


def made(cls, *fields):
    record = object.__new__(cls)
    Record._fields.__set__(record, fields)
    return record


def field(at, doc):
    return property(lambda record: record._fields[at], doc=doc)


def absent(module, name, sentence, *bases, **members):
    """A type of the original that this build has not: it says so when one is made."""

    def new(cls, *args, **keywords):
        raise NotImplementedError(sentence)

    doc = "Not in this build: raises NotImplementedError."
    return type(name, bases, {"__new__": new, "__slots__": (), "__module__": module, "__doc__": doc, **members})
