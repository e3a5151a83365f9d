"""The federated optimizers, by name: one line each."""

from tff_noise.optimizers import adaptive
from tff_noise.optimizers import fed_avg
from tff_noise.optimizers import fed_bn
from tff_noise.optimizers import fed_dyn
from tff_noise.optimizers import fed_nova
from tff_noise.optimizers import fed_prox
from tff_noise.optimizers import median
from tff_noise.optimizers import power_of_choice
from tff_noise.optimizers import scaffold

OPTIMIZERS = {
    s.name: s
    for s in (
        fed_avg.SPEC,
        fed_prox.SPEC,
        fed_nova.SPEC,
        adaptive.FED_ADAM,
        adaptive.FED_YOGI,
        adaptive.FED_ADAGRAD,
        fed_dyn.SPEC,
        scaffold.SPEC,
        fed_bn.SPEC,
        median.SPEC,
        power_of_choice.SPEC,
    )
}
