# SPDX-License-Identifier: Apache-2.0
"""What makes types and methods that are written in Python look as those of an extension do."""

import functools
from enum import IntEnum


def full_name(cls):
    return f"{cls.__module__}.{cls.__name__}"


class Constant(IntEnum):
    """An enum whose members show their names, whatever the version of Python."""

    def __str__(self):
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, form):
        return int.__format__(self, form) if form else str(self)


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


def checked(function, spellings={}):
    """The method `function`, whose caller is told of wrong arguments as by the methods of an extension. spellings: other name -> its name."""
    name, code = function.__name__, function.__code__
    names = code.co_varnames[1 : code.co_argcount]
    needed = names[: len(names) - len(function.__defaults__ or ())]

    @functools.wraps(function)
    def method(self, /, *args, **keywords):
        if len(args) > len(names):
            raise TypeError(f"{name}() takes at most {len(names)} arguments ({len(args)} given)")
        values = dict(zip(names, args))
        for given, value in keywords.items():
            at = spellings.get(given, given)
            if at not in names:
                raise TypeError(f"{name}() got an unexpected keyword argument '{given}'")
            if at in values:
                raise TypeError(f"{name}() got multiple values for argument '{given}'")
            values[at] = value
        for each in needed:
            if each not in values:
                raise TypeError(f"{name}() missing required argument '{each}'")
        return function(self, **values)

    return method
