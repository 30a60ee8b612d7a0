//! Programs on devices of XLA: training steps, training on two devices, and the conformance corpus. Tests on devices need
//! a PJRT plugin for the CPU, whose path is in the environment variable `AUTOBWD_PJRT_PLUGIN`; without it they are ignored.

mod corpus;
mod replicas;
mod support;
mod training;

use support::{run, tests};

fn main() {
    let tests = tests![
        corpus::programs_have_the_known_lowering,
        replicas::steps_for_two_devices_are_lowered,
        training::steps_are_lowered,
    ];
    let on_devices = tests![
        corpus::programs_have_the_values_of_the_executor,
        replicas::two_devices_train_as_one,
        replicas::optimizer_state_is_divided_among_devices,
        training::steps_have_the_expected_losses,
    ];
    run(tests, on_devices)
}
