/* An empty Python module, so that setuptools compiles the kernels like any other extension.

   Python finds the file of this module; library.py calls the functions in it with ctypes. Importing the module runs none
   of the kernels. */

#include <Python.h>

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "rehearse_kernels._kernels",
    .m_doc = "The compiled kernels. Use rehearse_kernels.install instead.",
};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModule_Create(&definition); }
