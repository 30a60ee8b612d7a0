//! Devices, and programs on them. Tests on devices need a PJRT plugin for the CPU, whose path is in the environment
//! variable `AUTOBWD_PJRT_PLUGIN`; without it they are ignored.

#[path = "../common/mod.rs"]
mod common;
mod executor;
mod pjrt;
mod plugin;
mod program;
mod replicas;
mod sharding;

use common::{run, tests};

fn main() {
    let tests = tests![
        pjrt::files_that_are_no_plugins_are_errors,
        replicas::collective_operators_have_the_known_text,
        replicas::program_for_other_ranks_is_refused,
        sharding::sharded_step_has_the_known_text,
    ];
    let on_devices = tests![
        executor::training_has_the_values_of_the_host,
        executor::start_up_programs_of_one_scope_do_not_share_a_learning_rate,
        executor::programs_are_compiled_once_for_a_shape,
        executor::errors_of_the_executor_name_their_cause,
        pjrt::client_describes_itself,
        pjrt::sums_of_every_dtype,
        pjrt::layouts_are_row_major_and_tensors_may_be_empty,
        pjrt::donated_argument_gives_its_memory_to_the_result,
        pjrt::wrong_arguments_are_errors,
        pjrt::texts_that_do_not_compile_are_errors_with_their_position,
        pjrt::options_that_the_plugin_does_not_know_are_errors,
        pjrt::replicas_run_on_their_devices,
        pjrt::program_runs_on_the_second_device,
        pjrt::saved_executables_are_loaded_again,
        pjrt::executable_outlives_its_client_and_is_shared_by_threads,
        pjrt::result_that_exceeds_the_memory_is_an_error,
        program::states_stay_on_the_device,
        program::feeds_and_fetches_may_stay_on_the_device,
        program::donated_feed_of_the_caller_is_only_read,
        program::wrong_feeds_fetches_and_states_are_errors_that_leave_the_scope,
        program::declarations_that_contradict_the_text_are_errors,
        program::threads_share_a_program_each_with_its_scope,
        program::replicas_have_their_own_scopes,
        program::run_that_fails_leaves_no_deleted_states,
        replicas::replicas_have_the_values_of_ranks,
        replicas::program_of_two_replicas_needs_two_devices,
        sharding::sharded_step_computes_what_one_device_does,
        sharding::start_up_program_writes_parts,
        sharding::other_devices_are_refused,
    ];
    run(tests, on_devices)
}
