"""Our shaped link against one that the kernel shapes; our counts against the interface's."""
