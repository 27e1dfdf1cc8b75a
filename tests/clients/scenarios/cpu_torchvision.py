"""Import this before torchvision on a CPU: its wheel is built for CUDA, does not find its own operators, and fails when it describes them."""
import torch

LIBRARY = torch.library.Library("torchvision", "DEF")
LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
LIBRARY.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
