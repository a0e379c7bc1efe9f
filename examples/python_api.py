import torch
from sklearn.datasets import load_digits
from torch import nn

import freewheel

x, y = (torch.as_tensor(values) for values in load_digits(return_X_y=True))
x = x.float() / 16
result = freewheel.train(
    model=nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10)),
    data=((x[:1400], y[:1400]), (x[1400:], y[1400:])),
    loss=lambda output, target: nn.functional.cross_entropy(output, target, label_smoothing=0.1),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.003),
    layout={"stages": 2},
    train={"epochs": 10},
)
print(result.summary["final_accuracy"], list(result.state_dict()))
