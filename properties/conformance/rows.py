"""The rows of the conformance report: adapters of frameworks, each with one choice of options."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

# For each framework: the name of its distribution, and the address of its documentation.
FRAMEWORKS: Mapping[str, tuple[str, str]] = {
    "torch": ("torch", "https://docs.pytorch.org/docs/2.13/distributed.html"),
    "accelerate": ("accelerate", "https://huggingface.co/docs/accelerate/package_reference/torch_wrappers"),
    "deepspeed": ("deepspeed", "https://deepspeed.readthedocs.io/en/latest/"),
    "fairscale": ("fairscale", "https://fairscale.readthedocs.io/en/latest/api/index.html"),
    "lightning-fabric": ("lightning-fabric", "https://lightning.ai/docs/fabric/stable/api/fabric_methods.html"),
    "megatron-core": (
        "megatron-core",
        "https://docs.nvidia.com/megatron-core/developer-guide/latest/api-guide/distributed.html",
    ),
    "mmengine": ("mmengine", "https://mmengine.readthedocs.io/en/latest/advanced_tutorials/distributed.html"),
    "muon-optimizer": ("muon-optimizer", "https://github.com/KellerJordan/Muon#usage"),
    "pipegoose": ("pipegoose", "https://github.com/xrsrke/pipegoose#readme"),
    "pytorch-pfn-extras": (
        "pytorch-pfn-extras",
        "https://pytorch-pfn-extras.readthedocs.io/en/latest/user_guide/distributed.html",
    ),
    "torchdata": ("torchdata", "https://meta-pytorch.org/data/main/torchdata.stateful_dataloader.html"),
    "torchft": ("torchft-nightly", "https://meta-pytorch.org/torchft/ddp.html"),
    "transformers": ("transformers", "https://huggingface.co/docs/transformers/en/trainer_recipes"),
}


@dataclass(frozen=True)
class Row:
    """An adapter.

    ``framework``: one of `FRAMEWORKS`. ``place``: "module:attribute" in `impls.frameworks`. ``world``: real processes
    for frameworks that keep state in each process.
    """

    framework: str
    place: str
    world: str = "sim"

    @property
    def name(self) -> str:
        """The adapter's own name."""
        return self.place.rpartition(":")[2]

    @property
    def target(self) -> str:
        """The argument of `lockstep check`."""
        return f"lockstep.impls.frameworks.{self.place}"

    @property
    def adapter(self) -> Any:
        """The adapter itself, a class or a function."""
        module, _, name = self.target.rpartition(":")
        return getattr(import_module(module), name)

    @property
    def versions(self) -> Mapping[str, str] | None:
        """The version of the framework; None if it is not installed."""
        distribution = FRAMEWORKS[self.framework][0]
        try:
            return {distribution: version(distribution)}
        except PackageNotFoundError:
            return None


def _of(framework: str, world: str, module: str, *names: str) -> tuple[Row, ...]:
    return tuple(Row(framework, f"{module}:{name}", world) for name in names)


DDP = (
    "TorchDDP",
    "TorchDDPFindUnused",
    "TorchDDPBucketView",
    "TorchDDPBatchedCopy",
    "TorchDDPStaticGraph",
    "TorchDDPHook",
    "TorchDDPCompressed",
)
ROWS: tuple[Row, ...] = (
    *_of("torch", "sim", "torch_ddp", *DDP),
    *_of("torch", "sim", "replicate", "Replicate"),
    *_of("torch", "sim", "replicate_fsdp", "ReplicateFSDP"),
    *_of("torch", "sim", "zero_redundancy", "ZeroRedundancy", "ZeroRedundancyBucketView"),
    *_of("torch", "sim", "fsdp1", "FSDP1", "FSDP1ShardsGradients", "FSDP1ShardsNothing"),
    *_of("torch", "sim", "fsdp1", "FSDP1Hybrid", "FSDP1Compressed"),
    *_of("torch", "sim", "fsdp2", "FSDP2", "FSDP2KeepsParameters", "FSDP2ReducesInDouble", "FSDP2Compressed"),
    *_of("torch", "sim", "fsdp2", "FSDP2ReducesShards"),
    *_of("torch", "sim", "fsdp2_experts", "FSDP2Experts", "FSDP2ExpertsAsTheyCome"),
    *_of("torch", "sim", "torch_collectives", "TorchCollectives"),
    *_of("torch", "sim", "torch_data", "TorchSampler", "TorchLoader"),
    *_of("accelerate", "gloo", "accelerate_data", "AccelerateLoader", "AccelerateUneven", "AccelerateSplit"),
    *_of("accelerate", "gloo", "accelerate_data", "AccelerateStateful"),
    *_of("accelerate", "gloo", "accelerate_loop", "AccelerateLoop", "AccelerateTokens"),
    *_of("deepspeed", "sim", "deepspeed_zero", *(f"DeepSpeedZeRO{stage}" for stage in (1, 2, 3))),
    *_of("fairscale", "sim", "fairscale_sharded", "FairscaleSharded", "FairscaleUnbucketed", "fairscale_oss"),
    *_of("lightning-fabric", "gloo", "fabric_data", "FabricLoader"),
    *_of("lightning-fabric", "gloo", "fabric_loop", "FabricLoop", "FabricTokens"),
    *_of("megatron-core", "sim", "megatron_ddp", "MegatronDDP", "MegatronOverlapped"),
    *_of("mmengine", "sim", "mmengine", "MMSeparate", "MMCollectives"),
    *_of("muon-optimizer", "sim", "muon", "DistributedMuonWithAdam"),
    *_of("pipegoose", "sim", "pipegoose", "pipegoose_ddp", "pipegoose_zero1"),
    *_of("pytorch-pfn-extras", "sim", "pfn_ddp", "pfn_ddp"),
    *_of("torchdata", "sim", "torchdata_data", "TorchdataLoader", "TorchdataStatefulSampler"),
    *_of("torchft", "gloo", "torchft_ddp", "torchft_ddp", "torchft_pure_ddp"),
    *_of("transformers", "gloo", "transformers_loop", "TrainerTokens", "TrainerMicroBatches"),
)
