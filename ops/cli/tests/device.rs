//! The option `--device`. The test needs a PJRT plugin for the CPU, whose path is in the environment variable
//! `AUTOBWD_PJRT_PLUGIN`; without it the test is ignored.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    path::Path,
    process::Command,
};

use libtest_mimic::{Arguments, Trial};
use serde_json::Value;

const AUTOBWD: &str = env!("CARGO_BIN_EXE_autobwd");

fn main() {
    let plugin = env::var_os("AUTOBWD_PJRT_PLUGIN");
    let is_missing = plugin.is_none();
    let test = Trial::test("run_on_a_device_has_the_values_of_the_host", || {
        run_on_a_device_has_the_values_of_the_host(plugin.ok_or("AUTOBWD_PJRT_PLUGIN is not set")?);
        Ok(())
    });
    let kind = if is_missing { "AUTOBWD_PJRT_PLUGIN is not set" } else { "" };
    let test = test.with_ignored_flag(is_missing).with_kind(kind);
    libtest_mimic::run(&Arguments::from_args(), vec![test]).exit()
}

fn run_on_a_device_has_the_values_of_the_host(plugin: OsString) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let run = |arguments: &[&OsStr]| {
        let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cmd/commands.in");
        let command = "run model.json --startup startup.json --feeds xor.npz --steps 2 --fetch mean_0 --log";
        let log = folder.join("device.jsonl");
        let output = Command::new(AUTOBWD)
            .current_dir(input)
            .args(command.split(' '))
            .arg(&log)
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let last = |text: &str| serde_json::from_str::<Value>(text.lines().last().unwrap()).unwrap();
        (last(&String::from_utf8_lossy(&output.stdout)), last(&fs::read_to_string(log).unwrap()))
    };
    let (host, host_log) = run(&[]);
    let (device, device_log) = run(&["--device".as_ref(), &plugin]);
    assert!(
        device["device"].is_string() && device["compile_seconds"].is_f64() && device["threads"].is_null()
    );
    let near =
        |host: &Value, device: &Value| (host.as_f64().unwrap() - device.as_f64().unwrap()).abs() < 1e-6;
    assert!(near(&host["fetched"]["mean_0"]["value"], &device["fetched"]["mean_0"]["value"]));
    assert!(near(&host_log["values"]["mean_0"], &device_log["values"]["mean_0"]));
    assert_eq!(host_log["step"], device_log["step"]);
}
