def step(loop):
    loop.step()
