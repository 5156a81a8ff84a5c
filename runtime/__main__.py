"""`python -m runtime` is the console command `onnxlm`."""

from .cli.main import main

if __name__ == "__main__":
    main(prog_name="onnxlm")
