"""Runs main() of a module beside this file: a module's compiled form is kept, a script's isn't.

python3.NN -I -S node/enter.py MODULE ARGUMENTS
"""

import sys

sys.path.insert(0, sys.argv[0].rpartition("/node/")[0])
__import__("node." + sys.argv[1], fromlist=["main"]).main(sys.argv[2:])
