"""A fake of Inductor, torch's compiler."""
