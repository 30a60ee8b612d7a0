//! Tensors that are divided among devices: the text (`sharding.mlir`, which `UPDATE=1` writes; no plugin needed), and
//! training steps, which compute what they do on one device.

use autobwd::{Builder, DType, Executor, Meta, OpInfoMap, Result, Scope, Tensor};
use autobwd_ops::{
    Math,
    nn::{Dropout, Linear},
    optim::{Adam, Optimizer},
};
use autobwd_xla::{
    DeviceExecutor, DeviceScope, ShardedScope, Sharding,
    lower::{LowerRequest, lower},
    pjrt::CompileOptions,
};

use crate::{
    common::compare,
    plugin::{client, device},
};

/// A perceptron with dropout and a training step: the network, its loss, and the values at the start.
fn perceptron() -> Result<(Builder, String, Scope)> {
    let net = Builder::new();
    let (x, y) = (net.input("x", DType::F32, &[-1, 6]), net.input("y", DType::F32, &[-1, 2]));
    let hidden = Linear::builder(&net, 6, 8).name("hidden").seed(1).build();
    let output = Linear::builder(&net, 8, 2).name("output").seed(2).build();
    let h = Dropout::new(&net, 0.25, 3).forward(&hidden.forward(&x).tanh());
    let loss = output.forward(&h).square_error(&y).mean();
    Adam::new(0.05).minimize(&loss)?.complete()?;
    let mut start = Scope::new();
    Executor::with_threads(1).run(&net.startup().program()?, &mut start, &[], &[])?;
    Ok((net, loss.name(), start))
}

/// Each device has half of the batch, half of the columns of the first weight and the rows of the second that belong to
/// them.
fn sharding() -> Sharding {
    Sharding::new().split("x", 0).split("hidden.w", 1).split("hidden.b", 0).split("output.w", 0)
}

fn batch() -> Result<[Tensor; 2]> {
    let numbers =
        |n: usize, by: usize| (0..n).map(|i| ((i * by) % 11) as f32 / 11.0 - 0.5).collect::<Vec<_>>();
    Ok([Tensor::from_vec([4, 6], numbers(24, 7))?, Tensor::from_vec([4, 2], numbers(8, 5))?])
}

pub(crate) fn sharded_step_has_the_known_text() -> Result<()> {
    let (net, loss, start) = perceptron()?;
    let [x, y] = batch()?;
    let (feeds, fetches) = ([("x", x.meta()), ("y", y.meta())], [loss.as_str()]);
    let (known, sharding) = (|name: &str| start.get(name).ok().map(|value| value.meta()), sharding());
    let (request, program) = (LowerRequest::new(&feeds, &known, &fetches), net.program()?.clone());
    let request = request.sharding(&sharding, 2);
    let lowered = lower(&program, OpInfoMap::linked()?, &request)?;
    lowered.check()?;
    let hidden = lowered.arguments.iter().find(|argument| argument.name == "hidden.w.moment1").unwrap();
    assert_eq!((&hidden.dims[..], hidden.axis), (&[6, 4][..], Some(1)));
    let main = lowered.text.split_inclusive("{\n").take(2);
    compare("sharding.mlir", &main.collect::<String>());

    let odd = Sharding::new().split("x", 1);
    let e = lower(&program, OpInfoMap::linked()?, &request.sharding(&odd, 4)).unwrap_err();
    assert!(
        e.message().contains("`x` of shape [4, 6] cannot be divided along dimension 1 among 4 devices"),
        "{e}"
    );
    let misspelt = sharding.clone().split("hiden.w", 1);
    let e = lower(&program, OpInfoMap::linked()?, &request.sharding(&misspelt, 2)).unwrap_err();
    let expected = "cannot divide `hiden.w`, which `split_if_present` would allow to be absent: \
                    the program has no variable `hiden.w`; did you mean `hidden.w`";
    assert!(e.message().contains(expected), "{e}");
    let tolerant = sharding.clone().split_if_present("hiden.w", 1);
    assert!(lower(&program, OpInfoMap::linked()?, &request.sharding(&tolerant, 2)).is_ok());

    let e = lower(&program, OpInfoMap::linked()?, &request.replicas(2)).unwrap_err();
    assert!(e.message().contains("replicas of a program cannot be sharded"), "{e}");
    Ok(())
}

pub(crate) fn sharded_step_computes_what_one_device_does() -> Result<()> {
    let (two, one) = (client(2)?, device()?);
    let (net, loss, start) = perceptron()?;
    let [x, y] = batch()?;
    let feeds = [("x", &x), ("y", &y)];
    let program = net.program()?;

    let (mut executor, mut scope) = (DeviceExecutor::new(), ShardedScope::new(&two.devices(), sharding()));
    scope.upload(&start)?;
    let (mut alone, mut whole) = (DeviceExecutor::new(), DeviceScope::new(&one));
    whole.upload(&start)?;
    for _ in 0..3 {
        let sharded = executor.run_sharded(&program, &mut scope, &feeds, &[&loss, "x"])?;
        let expected = alone.run(&program, &mut whole, &feeds, &[&loss, "x"])?;
        assert!((sharded[0].item()? - expected[0].item()?).abs() < 1e-6, "{sharded:?}, not {expected:?}");
        assert_eq!(sharded[1], x);
    }
    for part in scope.parts() {
        assert_eq!(part.get("hidden.w.moment1")?.dims(), [6, 4]);
        assert_eq!(part.get("hidden.w.beta1_pow")?.dims(), [1]);
        assert_eq!(part.get("output.w")?.dims(), [4, 2]);
    }
    let mut found = Scope::new();
    scope.download(&mut found)?;
    for (name, expected) in whole.iter() {
        let (found, expected) = (found.get(name)?.to_f64s(), expected.download()?.to_f64s());
        assert_eq!(found.len(), expected.len(), "{name}");
        let far = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(far < 1e-6, "{name}: {far}");
    }
    Ok(())
}

pub(crate) fn start_up_program_writes_parts() -> Result<()> {
    let client = client(2)?;
    let (net, _, start) = perceptron()?;
    let (mut executor, mut scope) = (DeviceExecutor::new(), ShardedScope::new(&client.devices(), sharding()));
    executor.run_sharded(&net.startup().program()?, &mut scope, &[], &[])?;
    assert_eq!(scope.parts()[1].get("hidden.w")?.dims(), [6, 4]);
    for (name, expected) in start.iter() {
        assert_eq!(scope.tensor(name)?.meta(), expected.meta(), "{name}");
    }
    let hidden = scope.tensor("hidden.w")?;
    let expected = start.get("hidden.w")?;
    hidden.to_f64s().iter().zip(expected.to_f64s()).for_each(|(a, b)| assert!((a - b).abs() < 1e-6));
    Ok(())
}

pub(crate) fn other_devices_are_refused() -> Result<()> {
    let client = client(2)?;
    let (net, loss, start) = perceptron()?;
    let [x, y] = batch()?;
    let feeds: [(&str, Meta); 2] = [("x", x.meta()), ("y", y.meta())];
    let (known, sharding) = (|name: &str| start.get(name).ok().map(|value| value.meta()), sharding());
    let fetches = [loss.as_str()];
    let (request, program) = (LowerRequest::new(&feeds, &known, &fetches), net.program()?.clone());
    let request = request.sharding(&sharding, 2);
    let lowered = lower(&program, OpInfoMap::linked()?, &request)?;
    let e = lowered.compile_with(&client, &CompileOptions::new(&client.devices())).unwrap_err();
    let expected =
        "the program is for 2 devices that share its tensors, not for 2 devices with a replica on each";
    assert_eq!(e.to_string(), expected);
    Ok(())
}
