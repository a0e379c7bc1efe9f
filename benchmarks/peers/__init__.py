"""Others that do what freewheel does, each as a script that runs one rank and prints one JSON line.

They are run at their fastest, on the same models, cuts, batches and links as freewheel's own arms.
"""
