"""diffusion.py: a denoising loop. It reads nothing back within a step, and waits for the device once."""
import torch
from common import DEVICE, mark

CHANNELS, STEPS, IMAGES = 32, 40, 6


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.GroupNorm(8, CHANNELS)
        self.conv = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.time = torch.nn.Linear(64, CHANNELS)

    def forward(self, x, time):
        return x + self.conv(torch.nn.functional.silu(self.norm(x))) + self.time(time)[:, :, None, None]


class Denoiser(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.begin, self.end = torch.nn.Conv2d(4, CHANNELS, 3, padding=1), torch.nn.Conv2d(CHANNELS, 4, 3, padding=1)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(4))
        self.attention = torch.nn.MultiheadAttention(CHANNELS, 4, batch_first=True)

    def forward(self, x, time):
        x = self.begin(x)
        for block in self.blocks:
            x = block(x, time)
        flat = x.flatten(2).transpose(1, 2)
        x = x + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view_as(x)
        return self.end(x)


model = Denoiser().to(DEVICE).eval()
alphas = torch.linspace(0.99, 0.1, STEPS).to(DEVICE)
frequencies = torch.exp(torch.linspace(0, 5, 32)).to(DEVICE)
with torch.inference_mode():
    for image in range(IMAGES):
        x = torch.randn(2, 4, 32, 32).to(DEVICE)
        for step in range(STEPS):
            mark()
            angle = frequencies * step
            time = torch.cat([angle.sin(), angle.cos()]).expand(4, 64)
            # one forward pass computes both parts of classifier-free guidance
            conditioned, plain = model(torch.cat([x, x]), time).chunk(2)
            noise = plain + 5 * (conditioned - plain)
            alpha = alphas[step]
            x = (x - (1 - alpha).sqrt() * noise) / alpha.sqrt() + 0.01 * torch.randn_like(x)
            if DEVICE == "cuda":
                torch.cuda.synchronize()
        picture = x.clamp(-1, 1).cpu()
print("diffusion", tuple(picture.shape))
