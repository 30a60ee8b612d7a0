//! Rectifiers are written as maxima and minima, which keep NaN and infinities.

use autobwd::{Builder, DType, Executor, Expr, Tensor};
use autobwd_onnx::{LoadOptions, from_bytes, to_bytes};
use autobwd_ops::{Math, Model};

#[test]
fn rectifiers_are_written_without_a_choice() -> autobwd::Result<()> {
    type Rectifier = fn(&Expr) -> Expr;
    let rectifiers: [(&str, Rectifier); 6] = [
        ("relu6", |x| x.relu6()),
        ("leaky_relu of slope 0.1", |x| x.leaky_relu(0.1)),
        ("leaky_relu of slope 3", |x| x.leaky_relu(3.0)),
        ("clip", |x| x.clip(-1.0, 2.0)),
        ("clip to one number", |x| x.clip(2.0, 2.0)),
        ("hard_swish", |x| x.hard_swish()),
    ];
    let elements = [f64::NEG_INFINITY, -4.0, -1.0, -0.5, 0.0, 0.5, 1.5, 7.0, f64::INFINITY, f64::NAN];
    for (name, rectifier) in rectifiers {
        let net = Builder::new();
        let x = net.input("x", DType::F64, &[-1]);
        let out = rectifier(&x).name();
        let feeds = vec!["x".to_string()];
        let mut model =
            Model { program: net.program()?.clone(), feeds, fetches: vec![out], scope: Default::default() };
        let bytes = to_bytes(&model)?;
        assert!(!bytes.windows(5).any(|text| text == b"Where"), "{name}");
        let x = Tensor::from_vec([elements.len()], elements.to_vec())?;
        let expected = model.run(&mut Executor::new(), &[&x])?[0].to_f64s();
        let mut read = from_bytes(&bytes, &LoadOptions::default())?;
        let found = read.run(&mut Executor::new(), &[&x])?[0].to_f64s();
        let equal = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12 || a == b || (a.is_nan() && b.is_nan());
        assert!(expected.iter().zip(&found).all(equal), "{name}: {expected:?} {found:?}");
        assert!(found[elements.len() - 1].is_nan(), "{name}: {found:?}");
    }
    Ok(())
}
