"""A fake of torch's compiler."""
