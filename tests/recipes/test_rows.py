"""Every row of every paper's preset against the numbers typed from the papers.

A row is resolved as a run is; where its dataset or backbone is not registered yet, by the functions of its recipe. The
values are those of the paper named in the comment; SPEC stands for the authors' scripts and code, listed in
docs/fidelity.md. A row without values here fails: type them when you add one.
"""

from functools import cache

import numpy as np
import pytest

from oodml import RunConfig
from oodml.config.protocol import batch_values, warmup_epochs, written_out
from oodml.data import list_datasets, make_batch_sampler
from oodml.losses import loss_record
from oodml.methods import Context, make_method, method_record, method_spec
from oodml.methods.s2sd import VARIANTS
from oodml.models import list_backbones
from oodml.recipes import Setup, as_dict, recipe
from oodml.study.grid import method_settings, points, with_teacher
from oodml.study.presets import presets
from oodml.study.settings import StudyConfig, teacher_label

RESNET18, RESNET50, RESNET101 = (f"resnet{layers}.tv_in1k" for layers in (18, 50, 101))  # ooDML, supplement B
UNREGISTERED = ("bninception", "googlenet")
CLASSES, IMAGES = (100, 98, 11_318), (5_864, 8_054, 59_551)  # of the train halves: S2SD, supplement A.1


class By(tuple):
    """One value for each of CUB, CARS and SOP."""

    def __new__(cls, cub, cars, sop):
        return super().__new__(cls, (cub, cars, sop))

    def on(self, dataset):
        return self[("cub200", "cars196", "sop").index(dataset)]


# -- settings of runs --------------------------------------------------------------------------------------------------

ALL = {
    "train": "all",
    "backbone": RESNET50,
    "lr": 1e-5,  # S2SD, supplement A.2; ooDML, supplement B; Sharing Matters, section 4
    "weight_decay": 4e-4,  # SPEC; printed otherwise, see test_recipes.py
    "schedule": "constant",  # S2SD, section 4.1: "utilizes no learning rate scheduling"
    "batch_size": 112,  # S2SD, supplement A.2
    "samples_per_class": 2,  # SPEC
    "sampler": "spc",
    "frozen_bn": True,  # S2SD, section 4.2; ooDML, supplement B
    "selection": "test",  # SPEC
    "warmup": 0.0,
    "cache_side": 512,  # S2SD, supplement A.2: "cropped from the original image size"; docs/fidelity.md
    "updates": By(52, 71, 531),  # in an epoch: IMAGES in batches of 112
}
RUN = {
    # Revisiting, supplement A (D = 128) and captions of tables 4 to 6 (epochs); S2SD, supplement A.2
    "revisiting": {**ALL, "embedding_dim": 128, "epochs": By(150, 150, 100)},
    "s2sd": {**ALL, "embedding_dim": 128, "epochs": By(150, 150, 100)},
    # ooDML, section 4 (epochs) and supplement B (512 dimensions)
    "oodml": {**ALL, "embedding_dim": 512, "epochs": By(200, 200, 150)},
    # Sharing Matters, section 4 (4 images per class, 256 × 256 cut at random) and table 1 (256 dimensions)
    "sharing": {**ALL, "embedding_dim": 256, "samples_per_class": 4, "transform": "crop", "epochs": By(150, 150, 100)},
}

# -- losses: Revisiting, supplement A.1, in the forms of the code (docs/fidelity.md) -----------------------------------

D = {"miner": "distance", "miner.lower": 0.5, "miner.upper": None}  # below eq. 24; the cut is off in the code
NPAIR = {"loss": "npair", "nu": 0.005, "one_positive": True, "squared_norm": False}  # eq. 4
ANGULAR = {"loss": "angular", "alpha": 45.0, "weight": 2.0, "nu": 0.005, "clamp": 50.0, "one_positive": True}  # eq. 5
ARCFACE = {"loss": "arcface", "scale": 16.0, "margin": 0.5, "lr": 5e-4, "clamp_negative": True}  # eq. 6
CONTRASTIVE = {"loss": "contrastive", "margin": 1.0, **D}  # eq. 1
GENLIFTED = {"loss": "genlifted", "margin": 1.0, "nu": 0.005, "squared_norm": False}  # eq. 3
HISTOGRAM = {"loss": "histogram", "bins": By(65, 65, 11)}  # below eq. 9
MARGIN = {"loss": "margin", "margin": 0.2, "beta": 1.2, "beta_lr": 5e-4, "normaliser": "triplets", **D}  # eq. 10
MARGIN_06 = {**MARGIN, "beta": 0.6}  # below eq. 10
MULTISIM = {"loss": "multisimilarity", "alpha": 2.0, "beta": 40.0, "lam": 0.5, "miner.epsilon": 0.1}  # eq. 12
MULTISIM |= {"qualifying_only": True}
PROXYNCA = {"loss": "proxynca", "radius": 3.0, "squared": True, "lr": 5e-4}  # SPEC: 50 · 1e-5
PROXYANCHOR = {"loss": "proxyanchor", "alpha": 32.0, "delta": 0.1, "lr": 0.02, "init": "normal"}  # SPEC: 2000 · 1e-5
QUADRUPLET = {"loss": "quadruplet", "margin": 0.2, "margin2": 0.2, "fourth": "position", **D}  # SPEC; eq. 14: 1, 0.5
SNR = {"loss": "snr", "margin": 0.2, "lam": 0.0, **D}  # SPEC; eq. 15: 0.005
SOFTTRIPLE = {"loss": "softtriple", "tau": 0.2, "scale": 8.0, "margin": 0.01, "gamma": 0.1, "centres": 2, "lr": 1e-5}
SOFTMAX = {"loss": "normsoftmax", "temperature": 0.05, "lr": By(1e-5, 1e-5, 0.002)}  # eq. 19; SPEC for SOP
TRIPLET = {"loss": "triplet", "margin": 0.2, "squared": True, **D}  # eq. 2
TRIPLET_R = {"loss": "triplet", "margin": 0.2, "squared": True, "miner": "random"}
TRIPLET_S = {"loss": "triplet", "margin": 0.2, "squared": True, "miner": "semihard", "miner.margin": 0.2}  # SPEC
TRIPLET_H = {"loss": "triplet", "margin": 0.2, "squared": True, "miner": "softhard"}

# -- ρ-regularisation: p_switch as in SPEC; R-margin's also in S2SD, supplement B --------------------------------------

R_MARGIN = {**MARGIN_06, "p_switch": By(0.4, 0.35, 0.15)}
R_MARGIN_12 = {**MARGIN, "p_switch": By(0.35, 0.35, 0.15)}
R_CONTRASTIVE = {**CONTRASTIVE, "p_switch": By(0.4, 0.35, 0.15)}
R_TRIPLET = {**TRIPLET, "p_switch": By(0.4, 0.35, 0.15)}
R_SNR = {**SNR, "lam": 0.005, "p_switch": By(0.3, 0.35, 0.15)}

# -- S2SD: section 4.2 -------------------------------------------------------------------------------------------------

GAMMA = By(50.0, 50.0, 5.0)
FOUR = [512, 1024, 1536, 2048]
DSD = {"γ": GAMMA, "T": 1.0, "targets": [2048], "pooling": "avg", "features": False, "distillation": "r-kl"}
DSD |= {"layers": 2, "topology": "multi", "detach": True, "setup": "distil", "windows": None}
DSDA = {**DSD, "pooling": "avg+max"}
MSD = {**DSD, "targets": FOUR}
MSDA = {**MSD, "pooling": "avg+max"}
MSDF = {**MSD, "features": True, "feature_start": 1000}
MSDFA = {**MSDF, "pooling": "avg+max"}
S2SD = {"DSD": DSD, "DSDA": DSDA, "MSD": MSD, "MSDA": MSDA, "MSDF": MSDF, "MSDFA": MSDFA}
STUDENT = {"γ": 50.0, "T": 1.0, "distillation": "r-kl"}  # table 7, in two stages
MARGIN_IN_S2SD = {**MARGIN, "beta": By(1.2, 1.2, 0.9)}  # supplement A.2 and B, table 4 (*)
WARM = {"run": {"warmup": By(0.0, 0.0, 1.0)}}  # supplement A.2: "a warmup epoch of all MLPs ... on SOP"


def s2sd(base, variant, **changes):
    """SPEC: in the code, β learns at the base rate in S2SD; proxies at that of the baseline."""
    nested = {"nested_lr": "base" if base["loss"] == "margin" else "own"}
    return {**base, **variant, **nested, **WARM, **changes}


# -- Sharing Matters: section 4; DiVA, uniform prior and S2SD as in ooDML's scripts (SPEC) -----------------------------

# Algorithm 1: an epoch shows every image to each of two tasks, an update each.
BOTH = {"updates": By(104, 142, 1062)}
SHARING = {"γ": By(2000.0, 500.0, 500.0), "variant": "both+sep+decor", "triplets": "shared", "hidden": 512, "run": BOTH}
# Table 8b, distance; section 4.3: "anchor-negative pairs sampled uniformly over distances"; the cut as for φ.
SHARING |= {"φ*": "Across", "φ* sampling": "distance", "φ* positive": "uniform", "φ* upper": None}
SHARING |= {"φ* nearest": False, "φ* constrained": True}
OF_GROUPS = {f"φ* {name}": None for name in ("sampling", "positive", "upper", "nearest", "constrained")}
GROUPS = {"triplets": "groups", "groups": By(30, 150, 50), "standardise": True, "φ*": "DistanceWeighted", **OF_GROUPS}
SEVERAL = {"φ*": "SeveralAcross", **OF_GROUPS}  # section 4: several random negatives
ONE, TWO = ({"samples_per_class": count} for count in (1, 2))  # section 4: ProxyNCA, N-pair
ONE_TASK = {"run": {}, "γ": None}
LONG = {"epochs": By(300, 300, 200)}  # the updates of BOTH for a baseline
D128 = {"embedding_dim": 128}

DIVA = {**MARGIN, "alpha": By(0.3, 0.15, 0.2), "decorrelation": By(1500.0, 100.0, 150.0), "queue": By(30, 30, 70)}
DIVA |= {"weights": By([0.75, 1.25], [0.5, 1.5], [1.0, 1.0]), "temperature": 0.01, "momentum": 0.9}
DIVA |= {"weighting": "batch", "sharing": "permuted", "intra": "permuted"}
DIVA |= {"run": {"batch_size": 108, "updates": By(54, 74, 551)}}
UNIFORM_PRIOR = {**MARGIN, "weight": By(0.2, 0.2, 0.02), "every": By(10, 10, 200), "width": By(100, 100, 50)}
OODML_R_MARGIN = {**R_MARGIN, "beta": By(0.6, 0.6, 0.9)}
OODML_S2SD = {**s2sd(OODML_R_MARGIN, MSDFA), "targets": [1024, 1536, 2048], "p_switch": By(0.4, 0.3, None)}
OODML_S2SD |= {"pooling": By("avg+max", "avg+max", "avg"), "feature_start": By(0, 0, 1000)}
OODML_PROXYANCHOR = {**PROXYANCHOR, **WARM}


def on(backbone, rows):
    return {label: {**facts, "run": {**facts.get("run", {}), **backbone}} for label, facts in rows.items()}


def crossed(rows, axis):
    """Rows with every point of an axis of settings behind their labels."""
    return {f"{a} · {b}": each for b, settings in axis.items() for a, each in on(settings, rows).items()}


FOUR_METHODS = {"ArcFace": ARCFACE, "Multisimilarity": MULTISIM, "DiVA": DIVA, "S2SD": OODML_S2SD}
MIXED = {"mixup α": 2.0, "layers": ["input", "stages"]}  # Revisiting, supplement H
SPC = {f"SPC-{n}": {"samples_per_class": n} for n in (2, 4, 8)}
SAMPLERS = {
    "DDM": {"sampler": "ddm"},
    "GC": {"sampler": "gc"},
    "SPC-R": {"sampler": "spc-r"},
    "FRD": {"sampler": "frd"},
}
LITERATURE = {  # S2SD, table 2; the schedule is not printed
    f"{label}+S2SD": s2sd(base, {**MSDFA, "pooling": By("avg+max", "avg+max", "avg")})
    for label, base in (("Multisimilarity", MULTISIM), ("Margin", MARGIN_IN_S2SD), ("R-Margin", R_MARGIN))
}
LITERATURE = on({"epochs": 180, "schedule": {"name": "step", "epochs": [120, 150], "factor": 0.3}}, LITERATURE)
WEIGHTS = (0.2, 1, 5, 20, 50, 250, 1000, 2000, 5000)
DIMENSIONS = {f"d{size}": {"embedding_dim": size} for size in (16, 32, 64, 128, 256, 512, 1024, 2048)}

# experiment -> label -> what the row must have
ROWS = {
    "objectives": {  # Revisiting, supplement, tables 4 to 6
        "Angular": ANGULAR,
        "ArcFace": ARCFACE,
        "Contrastive": CONTRASTIVE,
        "GenLifted": GENLIFTED,
        "Histogram": HISTOGRAM,
        "Multisimilarity": MULTISIM,
        "Margin β=0.6": MARGIN_06,
        "Margin β=1.2": MARGIN,
        "NPair": NPAIR,
        "ProxyNCA": PROXYNCA,
        "Quadruplet": QUADRUPLET,
        "SNR": SNR,
        "SoftTriple": SOFTTRIPLE,
        "Softmax": SOFTMAX,
        "Triplet": TRIPLET,
        "Triplet (R)": TRIPLET_R,
        "Triplet (S)": TRIPLET_S,
        "Triplet (H)": TRIPLET_H,
        "R-Contrastive": R_CONTRASTIVE,
        "R-Margin β=0.6": R_MARGIN,
        "R-Margin β=1.2": R_MARGIN_12,
        "R-SNR": R_SNR,
        "R-Triplet": R_TRIPLET,
    },
    "p-switch": {  # Revisiting, figure 8
        "p=0": MARGIN_06,
        **{f"p={p:g}": {**MARGIN_06, "p_switch": p} for p in (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6)},
    },
    "rho-recall": {  # Revisiting, figure 10
        "Contrastive": CONTRASTIVE,
        "R-Contrastive": R_CONTRASTIVE,
        "Margin β=0.6": MARGIN_06,
        "R-Margin β=0.6": R_MARGIN,
        "Margin β=1.2": MARGIN,
        "R-Margin β=1.2": R_MARGIN_12,
        "SNR": SNR,
        "R-SNR": R_SNR,
        "Triplet": TRIPLET,
        "R-Triplet": R_TRIPLET,
    },
    "samplers": crossed(  # Revisiting, supplement, tables 7 to 9
        {
            "Histogram": HISTOGRAM,
            "Margin": MARGIN,
            "Multisimilarity": MULTISIM,
            "NPair": NPAIR,
            "ProxyNCA": PROXYNCA,
            "Softmax": SOFTMAX,
            "Triplet (R)": TRIPLET_R,
        },
        {**SPC, **SAMPLERS},
    ),
    "mixup": {  # Revisiting, figure 13
        "Softmax": SOFTMAX,
        "Softmax + mixup": {**SOFTMAX, **MIXED},
        "Triplet": TRIPLET,
        "Triplet + mixup": {**TRIPLET, **MIXED},
        "Margin β=0.6": MARGIN_06,
        "Margin β=0.6 + mixup": {**MARGIN_06, **MIXED},
    },
    "s2sd-variants": {  # S2SD, tables 1, 4 and 5
        "Margin": MARGIN,
        "R-Margin": R_MARGIN,
        "Multisimilarity": MULTISIM,
        **{f"Margin + {name}": s2sd(MARGIN_IN_S2SD, variant) for name, variant in S2SD.items()},
        **{f"R-Margin + {name}": s2sd(R_MARGIN, variant) for name, variant in S2SD.items()},
        **{f"Multisimilarity + {name}": s2sd(MULTISIM, variant) for name, variant in S2SD.items()},
    },
    "s2sd-literature": crossed(LITERATURE, {f"ResNet50-{size}": {"embedding_dim": size} for size in (128, 512)}),
    "s2sd-proxyanchor": {  # S2SD, table 6
        "ProxyAnchor": PROXYANCHOR,
        **{f"ProxyAnchor + {name}": s2sd(PROXYANCHOR, S2SD[name]) for name in ("DSD", "MSD", "MSDF")},
    },
    "s2sd-distillation": {  # S2SD, table 7
        "Best Teacher (d=1024)": {**MULTISIM, "run": {"embedding_dim": 1024}},
        "Best Teacher (d=2048)": {**MULTISIM, "run": {"embedding_dim": 2048}},  # section 5.3
        "Base Student (d=128)": MULTISIM,
        "Distill Student (d=128)": {**MULTISIM, **STUDENT, "teacher": {"run": "Best Teacher (d=1024)"}},
        "Distill Student (d=128) of d=2048": {**MULTISIM, **STUDENT, "teacher": {"run": "Best Teacher (d=2048)"}},
        "Concur. Student (d=128)": s2sd(MULTISIM, DSD, setup="concurrent"),
        "Joint Student (d=128)": s2sd(MULTISIM, DSD, setup="joint"),
        **{f"{name} (d=128)": s2sd(MULTISIM, S2SD[name]) for name in ("DSD", "DSDA", "MSDA", "MSDFA")},
    },
    "s2sd-dimensions": crossed(  # S2SD, table 8
        {"Basic": MULTISIM, **{name: s2sd(MULTISIM, variant) for name, variant in S2SD.items()}}, DIMENSIONS
    ),
    "s2sd-ablations": {  # S2SD, tables 9, 10, 11, 13, 14 and 15
        "Basic": MULTISIM,
        "R-KL": s2sd(MULTISIM, DSDA),
        "Cos": s2sd(MULTISIM, DSDA, distillation="cosine"),
        "Eucl": s2sd(MULTISIM, DSDA, distillation="euclidean"),
        "KL-Full": s2sd(MULTISIM, DSDA, distillation="kl-full"),
        "KL-Mean": s2sd(MULTISIM, DSDA, distillation="kl-mean"),
        "Linear": s2sd(MULTISIM, DSDA, layers=1),
        "3 Layers": s2sd(MULTISIM, DSDA, layers=3),
        "4 Layers": s2sd(MULTISIM, DSDA, layers=4),
        "Straight": s2sd(MULTISIM, MSDA),
        "Fully": s2sd(MULTISIM, MSDA, topology="nested"),
        "Stacked": s2sd(MULTISIM, MSDA, topology="chained"),
        "Stacked as printed": s2sd(MULTISIM, MSDA, topology="chained-printed"),  # eq. 8
        **{f"DSDA, TD={size}": s2sd(MULTISIM, DSDA, targets=[size]) for size in (256, 512, 1024)},
        "MSDA, #B=2": s2sd(MULTISIM, MSDA, targets=[1024, 2048]),  # the widths of 2, 8 and 16 are not printed
        "MSDA, #B=8": s2sd(MULTISIM, MSDA, targets=list(range(256, 2049, 256))),
        "MSDA, #B=16": s2sd(MULTISIM, MSDA, targets=list(range(248, 2049, 120))),
        "Multi-B": s2sd(MULTISIM, MSDA, targets=[2048] * 4),  # figure 4A; the number is not printed
        "MSDFA": s2sd(MULTISIM, MSDFA),
        **{
            f"MSDFA, #P={n}": s2sd(MULTISIM, MSDFA, windows=window)  # appendix E.d
            for n, window in enumerate(([3, 3], [1, 1], [2, 2], [4, 1]), 1)
        },
        "DSDA, Non-Detach": s2sd(MULTISIM, DSDA, detach=False),
        "MSDA, No-Detach": s2sd(MULTISIM, MSDA, detach=False),
    },
    "s2sd-weight": {  # S2SD, table 12
        "γ=0": MULTISIM,  # 62.70 ± 0.53 on CUB is the number of Basic in tables 7 to 15
        "Joint": s2sd(MULTISIM, DSD, setup="joint"),  # table 7
        **{f"γ={weight:g}": s2sd(MULTISIM, DSD, γ=weight) for weight in WEIGHTS},
    },
    "s2sd-temperature": {  # S2SD, section 5.4: "best performance for temperatures T in [0.2, 2]"
        "Basic": MULTISIM,
        **{f"T={T:g}": s2sd(MULTISIM, MSDF, T=T) for T in (0.2, 0.5, 1, 1.5, 2)},
    },
    "sharing-losses": {  # Sharing Matters, tables 1 to 4
        "Margin · baseline d128": {**MARGIN, "run": D128},
        "Margin d256": MARGIN,
        "Margin d256 · 2× epochs": {**MARGIN, "run": LONG},
        "Sharing": {**MARGIN, **SHARING},
        "Sharing (groups)": {**MARGIN, **SHARING, **GROUPS},
        "Triplet (S) · baseline d128": {**TRIPLET_S, "run": D128},
        "Triplet (S) · baseline d256": TRIPLET_S,
        "Triplet (S) · baseline d256 · 2× epochs": {**TRIPLET_S, "run": LONG},
        "Triplet (S) · class + shared": {**TRIPLET_S, **SHARING},
        "NPair · baseline d128": {**NPAIR, "run": {**TWO, **D128}},
        "NPair · baseline d256": {**NPAIR, "run": TWO},
        "NPair · baseline d256 · 2× epochs": {**NPAIR, "run": {**TWO, **LONG}},
        "NPair · class + shared": {**NPAIR, **SHARING, **SEVERAL, "run": {**TWO, **BOTH}},
        "ProxyNCA · baseline d128": {**PROXYNCA, "run": {**ONE, **D128}},
        "ProxyNCA · baseline d256": {**PROXYNCA, "run": ONE},
        "ProxyNCA · baseline d256 · 2× epochs": {**PROXYNCA, "run": {**ONE, **LONG}},
        "ProxyNCA · class + shared": {
            **PROXYNCA,
            **SHARING,
            "φ* sampling": "semihard",  # section 4: "triplets ... with semihard negatives"
            "run": {**ONE, **BOTH},
        },
    },
    "sharing-regularisers": on(  # Sharing Matters, table 6; strengths are not printed
        D128,
        {
            "Margin": MARGIN,
            "Margin · 2× epochs": {**MARGIN, "run": LONG},
            "Margin + dropout": {**MARGIN, "dropout": 0.1},
            "Margin + noise output": {**MARGIN, "output_noise": 0.05},
            "Margin + noise input": {**MARGIN, "input_noise": 0.05},
            "Sharing (both)": {**MARGIN, **SHARING, "variant": "both", "γ": None},
        },
    ),
    "sharing-ablations": {  # Sharing Matters, tables 7 and 8
        label: {**MARGIN, **SHARING, **facts}
        for label, facts in {
            "discr. only": {"variant": "discr", **ONE_TASK},
            "discr. only · 2× epochs": {"variant": "discr", **ONE_TASK, "run": LONG},
            "shared only": {"variant": "shared", **ONE_TASK},
            "both": {"variant": "both", "γ": None},
            "both+sep": {"variant": "both+sep", "γ": None},
            "both+sep+decor": {"γ": 500.0},
            **{f"γ={weight:g}": {"γ": weight} for weight in (5, 50, 200, 1000, 2500)},
            "groups − std.": {**GROUPS, "standardise": False},
            "groups + std.": GROUPS,
            "min d(a,p)": {"triplets": "min-dap", "φ* nearest": True},
            "NoConstr": {"triplets": "no-constraint", "φ*": "AnyThree", **OF_GROUPS},  # "randomly sampled"
            "Sharing · random": {"φ* sampling": "random"},
            "Sharing · semihard": {"φ* sampling": "semihard"},
            "Sharing · positive by q⁻¹": {"φ* positive": "distance"},  # algorithm 1
        }.items()
    },
    "zero-shot": {  # ooDML, supplement, tables 3 to 6
        "Margin": MARGIN,
        "Multisimilarity": MULTISIM,
        "ArcFace": ARCFACE,
        "ProxyAnchor": OODML_PROXYANCHOR,
        "R-Margin": OODML_R_MARGIN,
        "Uniform Prior": UNIFORM_PRIOR,
        "DiVA": DIVA,
        "S2SD": OODML_S2SD,
    },
    "capacity": crossed(  # ooDML, figure 5
        FOUR_METHODS,
        {"resnet18": {"backbone": RESNET18}, "resnet50": {}, "resnet101": {"backbone": RESNET101}},
    ),
    "few-shot": on({"selection": "val"}, FOUR_METHODS),  # ooDML, figure 7
    "generic": {"ArcFace": ARCFACE, "S2SD": OODML_S2SD},  # ooDML, figure 6
    "transfer": FOUR_METHODS,  # ooDML, supplement, figure 3
}
# Versions with rows of their own.
INCEPTION = {  # S2SD, table 2, and supplement B; batch-norm is frozen in the rows with a star alone
    f"{label.removesuffix('+S2SD')}{star}+S2SD · Inception-BN-512": {
        **facts,
        **({"p_switch": By(0.15, 0.15, 0.3)} if "p_switch" in facts else {}),
        "run": {**facts["run"], "backbone": "bninception", "embedding_dim": 512, "frozen_bn": bool(star)},
    }
    for label, facts in LITERATURE.items()
    for star in ("", "*")
}


def on_googlenet(label, facts):
    """Sharing Matters, table 9: 512 + 512 dimensions; γ is for 128 dimensions an encoder."""
    size = 512 if "d128" in label else 1024
    run = {**facts.get("run", {}), "backbone": "googlenet", "embedding_dim": size, "lr": 1e-4}
    weight = {"γ": By(32_000.0, 8_000.0, 8_000.0)} if "γ" in facts else {}
    label = label.replace("d128", "d512").replace("Margin d256", "Margin · baseline d256").replace("d256", "d1024")
    return label, {**facts, **weight, "run": run}


GOOGLENET = dict(on_googlenet(*row) for row in ROWS["sharing-losses"].items() if row[0] != "Sharing (groups)")
OWN_ROWS = {
    **{f"s2sd-literature-{name}": INCEPTION for name in ("inception", "cars196-inception", "sop-inception")},
    **{f"sharing-losses-{name}": GOOGLENET for name in ("googlenet", "cub200-googlenet", "sop-googlenet")},
    "s2sd-weight-sop-margin": {  # S2SD, table 12: its peak on SOP is Margin + DSD of table 1
        "γ=0": MARGIN,
        "Joint": s2sd(MARGIN_IN_S2SD, DSD, setup="joint"),
        **{f"γ={weight:g}": s2sd(MARGIN_IN_S2SD, DSD, γ=weight) for weight in WEIGHTS},
    },
}


def loss_facts(spec, beta=None):
    """A loss with every option, and its miner's behind "miner."; `beta`: where the margin loss starts."""
    given = as_dict(spec)
    record = loss_record(given["name"])
    facts = {**record.defaults, **({"beta": beta} if beta and given["name"] == "margin" else {}), **given}
    facts["loss"] = facts.pop("name")
    miner = as_dict(facts.pop("miner", None) or record.default_miner)
    if miner is None:
        return facts
    from oodml.miners import miner_record

    options = {**miner_record(miner["name"]).defaults, **miner}
    facts["miner"] = options.pop("name")
    return {**facts, **{f"miner.{key}": value for key, value in options.items()}}


def task_facts(method):
    """How the triplets of φ* are made, with what the base leaves open."""
    miner = make_method(method).shared_task.objective(Context(4, 8, 8, 10), 8).miner
    names = ("sampling", "positive", "upper", "nearest", "constrained")
    return {"φ*": type(miner).__name__, **{f"φ* {name}": getattr(miner, name, None) for name in names}}


def facts_of(method):
    """A resolved method with every option; those that a loss has under the same name are renamed."""
    if method["name"] in ("plain", "rho", "mixup", "uniform_prior", "diva", "sharing", "s2sd", "distil"):
        options = {**method_record(method["name"]).defaults, **method}
    else:
        return loss_facts(method)
    inner = as_dict(options.pop("loss", None) or options.pop("base"))
    name = options.pop("name")
    if name in ("plain", "rho"):
        return {**options, **loss_facts({**inner, **({"miner": options["miner"]} if options.get("miner") else {})},
                                        beta=0.6 if name == "rho" else None)}  # fmt: skip
    renamed = {"gamma": "γ", "temperature": "T", "feature_windows": "windows"}
    if name == "s2sd":
        variant = VARIANTS[options["variant"]]
        options["targets"] = options["targets"] or variant["targets"]
        options["pooling"] = options["pooling"] or variant["pooling"]
        options["features"] = variant["feature_distill"]
    elif name == "sharing":
        options |= task_facts(method)
    elif name == "mixup":
        renamed = {"alpha": "mixup α"}
    elif name == "uniform_prior":
        renamed = {"hidden": "width"}
    elif name == "diva":
        renamed = {}
    return {**facts_of(inner), **{renamed.get(key, key): value for key, value in options.items()}}


def resolved(dataset, settings):
    """A run's settings with every default, method included."""
    if dataset in list_datasets() and settings.get("backbone") not in UNREGISTERED:
        return RunConfig(dataset=dataset, **settings).resolved().as_dict()
    found = recipe(settings["protocol"])
    values = {"method": "margin", "warmup": None, **found.run(dataset, settings.get("backbone")), **settings}
    setup = Setup(dataset, values["backbone"], values["embedding_dim"])
    values["method"] = written_out(method_spec(values["method"]), found, setup)
    if values["warmup"] is None:
        values["warmup"] = warmup_epochs(values["method"], found, dataset)
    return {**values, **batch_values(values["method"], found), **settings, "method": values["method"]}


@cache
def batches(dataset, sampler, batch_size, samples_per_class):
    """Batches in an epoch of the train half."""
    count = ("cub200", "cars196", "sop").index(dataset)
    labels = np.arange(IMAGES[count]) % CLASSES[count]
    return len(make_batch_sampler(sampler, labels, batch_size=batch_size, samples_per_class=samples_per_class, seed=0))


def with_updates(dataset, run):
    """A run with its number of updates in an epoch (tests/training/test_turns.py: a step has one for each task)."""
    count = batches(dataset, run["sampler"], run["batch_size"], run["samples_per_class"])
    return {**run, "updates": count * make_method(run["method"]).batches_per_step}


def plain(value):
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


PAPERS = {name: preset for name, preset in presets().items() if preset.settings["run"].get("protocol")}


def test_the_papers_presets_are_all_here():
    assert len(PAPERS) >= 52
    assert {preset.experiment for preset in PAPERS.values()} == ROWS.keys()
    assert OWN_ROWS.keys() <= PAPERS.keys()
    assert list_backbones() and not set(UNREGISTERED) & set(list_backbones()), "then resolve those rows as runs"


def row_settings(study, method, chosen):
    """The run settings of a row; a teacher of the study by its label, where planning writes its ID."""
    settings = method_settings(study.methods[method])
    if teacher_label(settings["method"]) is not None:
        settings["method"] = with_teacher(settings["method"], teacher_label(settings["method"]))
    return {**study.run, **settings, **chosen}


@pytest.mark.parametrize("name", PAPERS)
def test_every_row_has_the_papers_numbers(name):
    preset = PAPERS[name]
    dataset, expected = preset.settings["dataset"], OWN_ROWS.get(name, ROWS[preset.experiment])
    study = StudyConfig(name=name, **preset.settings)
    rows = {label: row_settings(study, method, chosen) for label, method, chosen in points(study)}
    assert rows.keys() == expected.keys()
    protocol = preset.settings["run"]["protocol"]
    for label, settings in rows.items():
        run = with_updates(dataset, resolved(dataset, settings))
        facts = facts_of(run["method"])
        wanted = dict(expected[label])
        for key, value in {**RUN[protocol], **wanted.pop("run", {})}.items():
            value = value.on(dataset) if isinstance(value, By) else value
            assert run[key] == value, f"{label}: {key} is {run[key]!r}, the paper has {value!r}"
        for key, value in wanted.items():
            value = value.on(dataset) if isinstance(value, By) else value
            assert plain(facts.get(key)) == value, f"{label}: {key} is {facts.get(key)!r}, the paper has {value!r}"
