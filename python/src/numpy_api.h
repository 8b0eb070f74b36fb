// NumPy's C API for several files of one module; tensor.cc imports it.
#pragma once
#include <Python.h>
#define PY_ARRAY_UNIQUE_SYMBOL opgraft_numpy_api
#ifndef NPY_IMPORT
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
