import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import truth

truth.work()
print(sys.flags, file=sys.stderr)
print("done", len(sys.argv))
try:
    raise ValueError("kept")
except ValueError as error:
    truth.work(1)
    print(sys.exc_info()[0], error)
truth.report()
