//! Random streams: independent, and the same on every machine.

use autobwd::{Attr, Builder, DType, Executor, Expr, Result, Scope, Tensor};
use autobwd_ops::{
    Init,
    nn::{Conv2d, Dropout, Embedding, Gru, Linear},
};

/// Masks of consecutive steps.
fn masks(net: &Builder, layers: &[&Dropout], steps: usize) -> Result<Vec<Vec<Tensor>>> {
    let x = net.input("x", DType::F32, &[-1]);
    let out = layers.iter().map(|layer| Ok(layer.forward(&x).name())).collect::<Result<Vec<_>>>()?;
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let (x, out) =
        (Tensor::from_vec([500], vec![1.0_f32; 500])?, out.iter().map(String::as_str).collect::<Vec<_>>());
    (0..steps).map(|_| executor.run(&net.program()?, &mut scope, &[("x", &x)], &out)).collect()
}

#[test]
fn no_two_masks_of_layers_and_steps_are_equal() -> Result<()> {
    let net = Builder::new();
    let layers = [1, 2, 3, 1].map(|seed| Dropout::new(&net, 0.5, seed));
    let layers: Vec<Dropout> = layers.into_iter().collect();
    // One layer is called twice.
    let called: Vec<&Dropout> = layers.iter().chain(&layers[..1]).collect();
    let all: Vec<Tensor> = masks(&net, &called, 4)?.into_iter().flatten().collect();
    assert_eq!(all.len(), 20);
    for (i, mask) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|other| other != mask), "mask {i}");
    }
    Ok(())
}

#[test]
fn one_text_of_a_program_gives_one_set_of_masks() -> Result<()> {
    let run = || {
        let net = Builder::new();
        masks(&net, &[&Dropout::new(&net, 0.5, 1)], 2)
    };
    assert_eq!(run()?, run()?);
    Ok(())
}

/// All kinds of layers, without seeds.
fn weights(net: &Builder) -> Vec<Expr> {
    let (a, b) = (Linear::builder(net, 4, 4).build(), Linear::builder(net, 4, 4).build());
    let conv = [Conv2d::builder(net, 1, 4, 2).build(), Conv2d::builder(net, 1, 4, 2).build()];
    let gru = Gru::builder(net, 4, 4).layers(2).build();
    let table = Embedding::builder(net, 4, 4).build();
    drop((a, b, conv, gru, table));
    net.parameters().into_iter().filter(|p| p.dims().len() > 1).collect()
}

#[test]
fn unseeded_parameters_differ_and_match_eager_mode() -> Result<()> {
    let (net, tape, mut scope) = (Builder::new(), autobwd::eager(), Scope::new());
    let (described, eager) = (weights(&net), weights(&tape));
    Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    assert_eq!(described.len(), 9);
    let mut first = vec![];
    for (described, eager) in described.iter().zip(eager) {
        assert_eq!(described.name(), eager.name());
        assert_eq!(scope.get(&eager.name())?, &eager.tensor()?);
        first.push(scope.get(&eager.name())?.to_f64s()[0]);
    }
    first.sort_by(f64::total_cmp);
    first.dedup();
    assert_eq!(first.len(), 9);
    Ok(())
}

#[test]
fn first_values_are_the_same_on_every_machine() -> Result<()> {
    // Computed independently, from the published constants of FNV-1a and SplitMix64.
    let net = Builder::new();
    for (name, seed) in [("a.w", 0), ("b.w", 0), ("a.w2", -1)] {
        net.parameter(name, DType::F32, &[2], |w| Init::Uniform(0.0, 1.0).emit(w, seed));
    }
    let startup = net.startup();
    let seeds = [38302809, 478072529, 1615863502].map(Attr::I32);
    for (op, seed) in startup.program()?.root().ops.iter().zip(&seeds) {
        assert_eq!(op.attrs.get("seed"), Some(seed));
    }
    Ok(())
}

#[test]
fn layer_names_do_not_depend_on_order_of_use() -> Result<()> {
    let names = |net: &Builder, lazily: bool| -> Result<[String; 2]> {
        let x = match net.is_eager() {
            true => net.constant(Tensor::zeros(DType::F32, &[1, 1, 8, 8])?),
            false => net.input("x", DType::F32, &[-1, 1, 8, 8]),
        };
        let first = Conv2d::builder(net, 1, 1, 3).build();
        if lazily {
            first.forward(&x);
        }
        let second = Conv2d::builder(net, 1, 1, 3).build();
        second.forward(&first.forward(&x));
        Ok([first.weight.name(), second.weight.name()])
    };
    for net in [Builder::new, autobwd::eager] {
        for lazily in [false, true] {
            assert_eq!(names(&net(), lazily)?, ["conv2d_0.w", "conv2d_1.w"]);
        }
    }
    Ok(())
}
