"""A PyTorch loop of your own, alone or as several workers with their parameters on servers.

python examples/own_loop.py
freewheel launch examples/own_loop.py --workers 3 --servers 2 --protocol ssp --staleness 3
torchrun --nproc-per-node 2 examples/own_loop.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import freewheel

x, y = load_digits(return_X_y=True)
inputs, targets = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
train, test = slice(0, 1500), slice(1500, None)

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

with freewheel.join(model, optimizer) as run:
    optimizer = run.optimizer
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
    data = TensorDataset(inputs[train], targets[train])
    sampler = DistributedSampler(data, run.world_size, run.rank)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for batch, labels in DataLoader(data, batch_size=32, sampler=sampler):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        scheduler.step()

with torch.no_grad():
    accuracy = (model(inputs[test]).argmax(1) == targets[test]).float().mean()
print(f"worker {run.rank} of {run.world_size}: test accuracy {accuracy:.3f}")
