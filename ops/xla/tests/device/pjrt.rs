//! Devices: plugins, buffers, compiled programs.

use std::{fs, thread};

use autobwd::{DType, ErrorKind, Result, Tensor, tensor::Bool};
use autobwd_xla::pjrt::{
    Client, ClientOptions, CompileOptions, Device, DeviceBuffer, Executable, Input, OptionValue, Plugin,
};

use crate::{
    common::plugin,
    plugin::{client, device, tensor},
};

/// A module whose `main` has this list of arguments, results and body.
fn module(arguments: &str, results: &str, body: &str) -> String {
    format!("module @m {{\n  func.func public @main({arguments}) -> ({results}) {{\n    {body}\n  }}\n}}\n")
}

/// The sum of two tensors of a type.
fn addition(ty: &str, donation: &str) -> String {
    let body = format!("%sum = stablehlo.add %x, %y : {ty}\n    return %sum : {ty}");
    module(&format!("%x: {ty}{donation}, %y: {ty}"), ty, &body)
}

fn add(device: &Device, ty: &str, x: Tensor, y: Tensor) -> Tensor {
    let executable = device.compile(&addition(ty, "")).unwrap();
    let (x, y) = (device.upload(&x).unwrap(), device.upload(&y).unwrap());
    let sum = executable.run([&x, &y]).unwrap().remove(0);
    sum.wait().unwrap();
    assert!(sum.is_ready().unwrap());
    sum.download().unwrap()
}

pub(crate) fn client_describes_itself() -> Result<()> {
    let client = client(2)?;
    assert_eq!((client.platform_name(), client.process_index(), client.devices().len()), ("cpu", 0, 2));
    assert!(!client.platform_version().is_empty());
    let second = client.device(1).unwrap();
    assert_eq!(
        (second.index(), second.id(), second.kind(), second.to_string().as_str()),
        (1, 1, "cpu", "cpu:1")
    );
    assert!(second.description().contains("1"), "{}", second.description());
    assert_eq!(second.memory().unwrap(), None);
    let e = client.device(2).unwrap_err();
    assert_eq!(e.to_string(), "the client has 2 devices, so there is no device 2");
    assert_eq!(Client::load(client.plugin().path()).unwrap().devices().len(), 1);
    assert!(client.plugin().version() >= (0, 57));
    let attributes = client.plugin().attributes().unwrap();
    let stablehlo = attributes.iter().find(|(name, _)| name == "stablehlo_current_version");
    assert!(
        matches!(stablehlo, Some((_, OptionValue::Ints(version))) if version.len() == 3),
        "{attributes:?}"
    );
    Ok(())
}

pub(crate) fn sums_of_every_dtype() -> Result<()> {
    let device = device()?;
    let of = |elements: Vec<f64>| Tensor::from_vec([3], elements).unwrap();
    assert_eq!(
        add(&device, "tensor<3xf64>", of(vec![1.5, 2.0, -3.0]), of(vec![0.25; 3])),
        of(vec![1.75, 2.25, -2.75])
    );
    assert_eq!(add(&device, "tensor<2xf32>", tensor(&[1.0, 2.0]), tensor(&[0.5, 0.5])), tensor(&[1.5, 2.5]));
    let of = |elements: Vec<i32>| Tensor::from_vec([1, 2], elements).unwrap();
    assert_eq!(add(&device, "tensor<1x2xi32>", of(vec![i32::MAX, 2]), of(vec![1, 3])), of(vec![i32::MIN, 5]));
    let of = |element: i64| Tensor::scalar(element).unwrap();
    assert_eq!(add(&device, "tensor<i64>", of(1 << 40), of(1)), of((1 << 40) + 1));
    let of = |elements: Vec<u8>| Tensor::from_vec([2], elements).unwrap();
    assert_eq!(add(&device, "tensor<2xui8>", of(vec![250, 1]), of(vec![10, 1])), of(vec![4, 2]));
    // The sum of bools is `or`. A bool of a tensor may be any byte.
    let mut x = Tensor::from_vec([4], vec![Bool::from(false); 4]).unwrap();
    x.bytes_mut().copy_from_slice(&[0, 1, 255, 2]);
    let y = Tensor::from_vec([4], [false, false, false, true].map(Bool::from).to_vec()).unwrap();
    let sum = add(&device, "tensor<4xi1>", x, y);
    assert_eq!((sum.dtype(), sum.bytes()), (DType::Bool, &[0, 1, 1, 1][..]));
    Ok(())
}

pub(crate) fn layouts_are_row_major_and_tensors_may_be_empty() -> Result<()> {
    let device = device()?;
    let text = module(
        "%x: tensor<2x3xf32>",
        "tensor<3x2xf32>, tensor<0x3xf32>",
        "%t = stablehlo.transpose %x, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
         %e = stablehlo.slice %x [1:1, 0:3] : (tensor<2x3xf32>) -> tensor<0x3xf32>
         return %t, %e : tensor<3x2xf32>, tensor<0x3xf32>",
    );
    let x = Tensor::from_vec([2, 3], vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let buffer = device.upload(&x).unwrap();
    assert_eq!(buffer.download().unwrap(), x);
    let results = device.compile(&text).unwrap().run([&buffer]).unwrap();
    assert_eq!(results[0].download().unwrap().slice::<f32>().unwrap(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    let empty = results[1].download().unwrap();
    assert_eq!(empty.dims(), [0, 3]);
    assert_eq!(device.upload(&empty).unwrap().download().unwrap(), empty);
    Ok(())
}

pub(crate) fn donated_argument_gives_its_memory_to_the_result() -> Result<()> {
    let device = device()?;
    let elements = vec![1.0_f32; 1000];
    for donation in [" {tf.aliasing_output = 0 : i32}", " {jax.buffer_donor = true}"] {
        let executable = device.compile(&addition("tensor<1000xf32>", donation)).unwrap();
        assert_eq!(executable.parameters().iter().map(|p| p.donated).collect::<Vec<_>>(), [true, false]);
        assert_eq!(executable.memory().unwrap().aliased, 4000);
        let y = device.upload(&tensor(&elements)).unwrap();
        let mut x = device.upload(&tensor(&elements)).unwrap();
        let address = x.address().unwrap();
        for step in 2..5 {
            x = executable.run([Input::from(x), Input::from(&y)]).unwrap().remove(0);
            assert_eq!(x.address().unwrap(), address);
            assert_eq!(x.download().unwrap().slice::<f32>().unwrap(), vec![step as f32; 1000]);
        }
        // A borrowed argument stays, though the program may reuse its memory.
        let sum = executable.run([&x, &y]).unwrap().remove(0);
        assert_ne!(sum.address().unwrap(), address);
        assert!(!x.is_deleted().unwrap());
        assert_eq!(x.download().unwrap().slice::<f32>().unwrap(), vec![4.0; 1000]);
        assert_eq!(x.bytes_on_device().unwrap(), 4000);
    }
    Ok(())
}

pub(crate) fn wrong_arguments_are_errors() -> Result<()> {
    let client = client(2)?;
    let (device, second) = (client.device(0).unwrap(), client.device(1).unwrap());
    let executable = device.compile(&addition("tensor<2xf32>", "")).unwrap();
    let x = device.upload(&tensor(&[1.0, 2.0])).unwrap();
    let message = |buffers: &[&DeviceBuffer]| {
        let e = executable.run(buffers.iter().copied()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Feed);
        e.to_string()
    };
    assert_eq!(message(&[&x]), "the program needs 2 arguments, and 1 are given");
    assert_eq!(message(&[]), "the program needs 2 arguments, and 0 are given");
    let long = device.upload(&tensor(&[1.0, 2.0, 3.0])).unwrap();
    assert_eq!(message(&[&x, &long]), "argument 1 (`%y`) needs float32 [2], not float32 [3]");
    let integers = device.upload(&Tensor::from_vec([2], vec![1_i32, 2]).unwrap()).unwrap();
    assert_eq!(message(&[&integers, &x]), "argument 0 (`%x`) needs float32 [2], not int32 [2]");
    let elsewhere = second.upload(&tensor(&[1.0, 2.0])).unwrap();
    assert_eq!(message(&[&x, &elsewhere]), "argument 1 (`%y`) is needed on cpu:0, and is on cpu:1");
    let other = client.plugin().client(&ClientOptions::new()).unwrap();
    let foreign = other.device(0).unwrap().upload(&tensor(&[1.0, 2.0])).unwrap();
    assert_eq!(message(&[&x, &foreign]), "argument 1 (`%y`) is a buffer of another client");
    let e = executable.run_replicas(vec![]).unwrap_err();
    assert_eq!(e.to_string(), "the program was compiled for 1 devices, and arguments are given for 0");
    let e = foreign.copy_to(&device).unwrap_err();
    assert_eq!(
        e.to_string(),
        "cannot copy float32 [2] from cpu:0 to cpu:0: it is a device of another client"
    );
    let e = client.compile("", &CompileOptions::new(&other.devices())).unwrap_err();
    assert_eq!(e.to_string(), "cannot compile for cpu:0: it is a device of another client");
    Ok(())
}

pub(crate) fn texts_that_do_not_compile_are_errors_with_their_position() -> Result<()> {
    let device = device()?;
    let message = |text: &str| {
        let e = device.compile(text).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Program, "{e}");
        e.to_string()
    };
    let e = message("module {\n  func.func @main( {\n}");
    assert!(e.starts_with("XLA cannot compile the program: ") && e.contains(":2:19"), "{e}");
    let body = "%sum = stablehlo.frobnicate %x : tensor<2xf32>\n return %sum : tensor<2xf32>";
    let e = message(&module("%x: tensor<2xf32>", "tensor<2xf32>", body));
    assert!(e.contains("frobnicate") && e.contains(":3:"), "{e}");
    let body = "%sum = stablehlo.add %x, %x : tensor<3xf32>\n return %sum : tensor<3xf32>";
    let e = message(&module("%x: tensor<2xf32>", "tensor<3xf32>", body));
    assert!(e.contains("'%x' expects different type"), "{e}");
    let e = message(&module("%x: tensor<2xi16>", "tensor<2xi16>", "return %x : tensor<2xi16>"));
    assert!(e.contains("tensor<2xi16>") || e.contains("element type i16"), "{e}");
    message("");
    message("\0");
    Ok(())
}

pub(crate) fn options_that_the_plugin_does_not_know_are_errors() -> Result<()> {
    let plugin = plugin()?;
    let e = plugin.client(&ClientOptions::new().set("no_such_option", true)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Device);
    assert!(e.to_string().contains("no_such_option"), "{e}");
    let e = plugin.client(&ClientOptions::new().set("cpu_device_count", "two")).unwrap_err();
    assert!(e.to_string().contains("cpu_device_count"), "{e}");
    for count in [0, -1, i64::MAX] {
        let e = plugin.client(&ClientOptions::new().set("cpu_device_count", count)).unwrap_err();
        assert_eq!(e.to_string(), format!("option `cpu_device_count` is {count}; it must be from 1 to 1024"));
    }
    let client = plugin.client(&ClientOptions::new()).unwrap();
    let options = CompileOptions::new(&client.devices());
    let text = addition("tensor<2xf32>", "");
    let e = client.compile(&text, &options.clone().flag("xla_no_such_flag", true)).unwrap_err();
    assert!(e.to_string().contains("xla_no_such_flag"), "{e}");
    let e = client.compile(&text, &options.clone().flag("xla_cpu_enable_fast_math", vec![1])).unwrap_err();
    assert_eq!(e.to_string(), "flag `xla_cpu_enable_fast_math` cannot be a list");
    client.compile(&text, &options.flag("xla_cpu_enable_fast_math", false)).unwrap();
    Ok(())
}

pub(crate) fn files_that_are_no_plugins_are_errors() -> Result<()> {
    let e = Plugin::load("no/such/plugin.so").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io);
    assert!(e.to_string().starts_with("cannot read `no/such/plugin.so`: "), "{e}");
    let e = Plugin::load("Cargo.toml").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Format);
    assert!(e.to_string().starts_with("`Cargo.toml` is not a PJRT plugin: "), "{e}");
    assert!(Plugin::load(".").is_err());
    let libc = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let libc =
        libc.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("libc"));
    if let Some(path) = libc {
        let e = Plugin::load(path).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Format);
        assert_eq!(e.to_string(), format!("`{path}` is not a PJRT plugin: it does not export `GetPjrtApi`"));
    }
    Ok(())
}

pub(crate) fn replicas_run_on_their_devices() -> Result<()> {
    let client = client(2)?;
    let devices = client.devices();
    let text = "module @m attributes {mhlo.num_replicas = 2 : i32} {
      func.func public @main(%x: tensor<2xf32> {jax.buffer_donor = true}) -> tensor<2xf32> {
        %sum = \"stablehlo.all_reduce\"(%x) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
          ^bb0(%a: tensor<f32>, %b: tensor<f32>):
            %c = stablehlo.add %a, %b : tensor<f32>
            stablehlo.return %c : tensor<f32>
        }) : (tensor<2xf32>) -> tensor<2xf32>
        return %sum : tensor<2xf32>
      }
    }";
    let executable = client.compile(text, &CompileOptions::new(&devices)).unwrap();
    assert_eq!(executable.devices(), devices);
    let upload = |device: &Device, x: f32| Input::from(device.upload(&tensor(&[x, 1.0])).unwrap());
    let results = executable
        .run_replicas(vec![vec![upload(&devices[0], 1.0)], vec![upload(&devices[1], 10.0)]])
        .unwrap();
    for (list, device) in results.iter().zip(&devices) {
        assert_eq!((list.len(), list[0].device()), (1, device));
        assert_eq!(list[0].download().unwrap(), tensor(&[11.0, 2.0]));
    }
    let e = executable.run([upload(&devices[0], 1.0)]).unwrap_err();
    assert_eq!(e.to_string(), "the program was compiled for 2 devices, and arguments are given for 1");
    let twice = [devices[0].clone(), devices[0].clone()];
    let e = client.compile(text, &CompileOptions::new(&twice)).unwrap_err();
    assert_eq!(e.to_string(), "cannot compile for cpu:0 twice: each replica needs its own device");
    assert!(client.compile(text, &CompileOptions::new(&[])).is_err());
    Ok(())
}

pub(crate) fn program_runs_on_the_second_device() -> Result<()> {
    let client = client(2)?;
    let (first, second) = (client.device(0).unwrap(), client.device(1).unwrap());
    let executable = second.compile(&addition("tensor<2xf32>", "")).unwrap();
    let x = first.upload(&tensor(&[1.0, 2.0])).unwrap().copy_to(&second).unwrap();
    let sum = executable.run([&x, &x]).unwrap().remove(0);
    assert_eq!(sum.device(), &second);
    let back = sum.copy_to(&first).unwrap().copy_to(&first).unwrap();
    assert_eq!((back.device(), back.download().unwrap()), (&first, tensor(&[2.0, 4.0])));
    Ok(())
}

pub(crate) fn saved_executables_are_loaded_again() -> Result<()> {
    let client = client(2)?;
    let second = client.device(1).unwrap();
    let saved = second.compile(&addition("tensor<2xf32>", " {tf.aliasing_output = 0 : i32}")).unwrap();
    let bytes = saved.to_bytes().unwrap();
    let loaded = client.load_executable(&bytes).unwrap();
    assert_eq!((loaded.parameters(), loaded.devices()), (saved.parameters(), saved.devices()));
    let x = second.upload(&tensor(&[1.0, 2.0])).unwrap();
    let y = second.upload(&tensor(&[1.0, 1.0])).unwrap();
    let (address, sum) =
        (x.address().unwrap(), loaded.run([Input::from(x), Input::from(&y)]).unwrap().remove(0));
    assert_eq!((sum.address().unwrap(), sum.download().unwrap()), (address, tensor(&[2.0, 3.0])));
    let e = loaded.run([&sum]).unwrap_err();
    assert_eq!(e.to_string(), "the program needs 2 arguments, and 1 are given");

    let message = |bytes: &[u8]| {
        let e = client.load_executable(bytes).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Format);
        e.to_string()
    };
    let start = "cannot load the executable: ";
    assert_eq!(message(b"no executable"), format!("{start}it was not saved by this version of autobwd"));
    let mut flipped = bytes.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for damaged in [&flipped, &bytes[..bytes.len() / 2], &bytes[..30], &bytes[..25]] {
        assert_eq!(message(damaged), format!("{start}the bytes are damaged"));
    }
    Ok(())
}

pub(crate) fn executable_outlives_its_client_and_is_shared_by_threads() -> Result<()> {
    let device = device()?;
    let executable = device.compile(&addition("tensor<64xf32>", " {jax.buffer_donor = true}")).unwrap();
    let shared = device.upload(&tensor(&[1.0; 64])).unwrap();
    drop(device);
    let steps = |executable: &Executable, shared: &DeviceBuffer, start: f32| {
        let mut x = executable.devices()[0].upload(&tensor(&[start; 64])).unwrap();
        for _ in 0..1000 {
            x = executable.run([Input::from(x), Input::from(shared)]).unwrap().remove(0);
            // Both threads borrow an argument whose memory the program may reuse.
            drop(executable.run([shared, shared]).unwrap());
        }
        x.download().unwrap()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = [0.0, 5.0]
            .map(|start| {
                (
                    start,
                    scope.spawn({
                        let (executable, shared) = (&executable, &shared);
                        move || steps(executable, shared, start)
                    }),
                )
            })
            .into();
        for (start, thread) in threads {
            assert_eq!(thread.join().unwrap(), tensor(&[start + 1000.0; 64]));
        }
    });
    assert_eq!(shared.download().unwrap(), tensor(&[1.0; 64]));
    Ok(())
}

pub(crate) fn result_that_exceeds_the_memory_is_an_error() -> Result<()> {
    let device = device()?;
    // More than the address space: no setting of the system allocates it.
    let ty = "tensor<70368744177664xf32>";
    let body = format!("%c = stablehlo.constant dense<1.0> : {ty}\n    return %c : {ty}");
    let e = device.compile(&module("", ty, &body)).unwrap().run::<[&DeviceBuffer; 0]>([]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfMemory);
    assert!(e.to_string().starts_with("cannot run the program on cpu:0: "), "{e}");
    Ok(())
}
