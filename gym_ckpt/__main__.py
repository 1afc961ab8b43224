"""`python -m gym_ckpt` is `gym-ckpt`."""

from gym_ckpt.cli.main import main

if __name__ == "__main__":
    main()
