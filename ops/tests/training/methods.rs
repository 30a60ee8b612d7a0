//! Methods of expressions: their values, and their gradients by central differences.

use autobwd::{Builder, DType, Expr, Result, Tensor};
use autobwd_ops::{Math, stack};

use crate::support::{assert_gradients, assert_near, constant};

#[test]
fn reductions_keep_their_axes() {
    let tape = autobwd::eager();
    let x = constant(&tape, &[2, 3, 4]);
    type Reduction = fn(&Expr, &[i32]) -> Expr;
    let pairs: [(Reduction, Reduction); 6] = [
        (Expr::sum, Expr::sum_keepdim),
        (Expr::mean_over, Expr::mean_keepdim),
        (Expr::max_over, Expr::max_keepdim),
        (Expr::min_over, Expr::min_keepdim),
        (Expr::prod, Expr::prod_keepdim),
        (Expr::logsumexp, Expr::logsumexp_keepdim),
    ];
    for (dropping, keeping) in pairs {
        let kept = keeping(&x, &[0, -1]);
        assert_eq!(kept.dims().to_string(), "[1, 3, 1]");
        assert_near(&kept, &dropping(&x, &[0, -1]).tensor().unwrap().to_f64s());
        assert_eq!(keeping(&x, &[]).dims().to_string(), "[1, 1, 1]");
        assert_gradients(&[&[2, 3, 2]], |_, x| keeping(&x[0], &[1]));
    }
}

#[test]
fn variances_equal_their_definition() {
    let tape = autobwd::eager();
    let x = constant(&tape, &[2, 5]);
    let values = x.tensor().unwrap().to_f64s();
    for correction in [0, 1, 2] {
        let of = |row: &[f64]| {
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (row.len() as f64 - f64::from(correction))
        };
        let rows: Vec<f64> = values.chunks(5).map(of).collect();
        assert_near(&x.variance(&[1], correction), &rows);
        assert_near(&x.std(&[1], correction), &rows.iter().map(|x| x.sqrt()).collect::<Vec<_>>());
        assert_near(&x.variance(&[], correction), &[of(&values)]);
        assert_gradients(&[&[2, 3]], |_, x| x[0].std(&[0, 1], correction));
        assert_gradients(&[&[2, 3]], |_, x| x[0].variance(&[-1], correction));
    }
    let one = constant(&tape, &[1]);
    assert!(one.variance(&[], 1).item().unwrap().is_nan());
    // Dimensions that are unknown while the program is built.
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, -1]);
    assert_eq!(x.std(&[1], 1).dims().to_string(), "[-1]");
}

#[test]
fn stacks_and_sorted_elements_have_gradients() {
    assert_gradients(&[&[2, 3], &[2, 3]], |_, x| stack(&[&x[0], &x[1], &x[0]], 1));
    assert_gradients(&[&[3, 4]], |_, x| x[0].sort(0, true).0);
    let net = Builder::new();
    let (x, y) = (net.input("x", DType::F32, &[2]), net.input("y", DType::F32, &[3]));
    assert!(stack(&[&x, &y], 0).check().is_err());
    assert!(x.sort(1, false).0.check().is_err());
}

#[test]
fn integers_have_arithmetic_and_reductions() -> Result<()> {
    let tape = autobwd::eager();
    let x = tape.constant(Tensor::from_vec([2, 2], vec![7_i64, -3, 2, 5])?);
    let y = tape.constant(Tensor::from_vec([2], vec![2_i64, 4])?);
    let values = |x: &Expr| x.tensor().unwrap().slice::<i64>().unwrap().to_vec();
    assert_eq!(values(&(&x + &y)), [9, 1, 4, 9]);
    assert_eq!(values(&(&x - &y)), [5, -7, 0, 1]);
    assert_eq!(values(&(&x * &y)), [14, -12, 4, 20]);
    assert_eq!(values(&x.floor_divide(&y)), [3, -1, 1, 1]);
    assert_eq!(values(&x.remainder(&y)), [1, 1, 0, 1]);
    assert_eq!(values(&x.maximum(&y)), [7, 4, 2, 5]);
    assert_eq!(values(&x.abs()), [7, 3, 2, 5]);
    assert_eq!(values(&x.sum(&[0])), [9, 2]);
    assert_eq!(values(&x.sum_keepdim(&[1])), [4, 7]);
    assert_eq!(values(&x.prod(&[1])), [-21, 10]);
    assert_eq!(values(&x.max_keepdim(&[])), [7]);
    assert_eq!(values(&x.min_over(&[0])), [2, -3]);
    assert_eq!(values(&x.cumsum(1)), [7, 4, 2, 7]);
    assert_eq!(values(&x.sort(1, false).0), [-3, 7, 2, 5]);
    assert_eq!(values(&stack(&[&y, &y], 0)), [2, 4, 2, 4]);
    Ok(())
}

#[test]
fn noise_has_the_shape_of_a_tensor_and_follows_the_seed() -> Result<()> {
    let tape = autobwd::eager();
    let x = tape.constant(Tensor::from_vec([100, 100], vec![0.0_f32; 10_000])?);
    let seed = |seed: i32| tape.constant(Tensor::from_vec([1], vec![seed]).unwrap());
    let normal = x.randn_like(&seed(3));
    assert!(normal.mean().item()?.abs() < 0.05 && (normal.std(&[], 1).item()? - 1.0).abs() < 0.05);
    let uniform = x.rand_like(&seed(3));
    assert!((uniform.mean().item()? - 0.5).abs() < 0.02);
    assert!(uniform.min_over(&[]).item()? >= 0.0 && uniform.max_over(&[]).item()? < 1.0);
    assert_eq!(uniform.tensor()?.bytes(), x.rand_like(&seed(3)).tensor()?.bytes());
    assert_ne!(uniform.tensor()?.bytes(), x.rand_like(&seed(4)).tensor()?.bytes());
    assert!(x.rand_like(&x).check().is_err());
    Ok(())
}

#[test]
fn rotated_products_depend_only_on_distances() -> Result<()> {
    let tape = autobwd::eager();
    let x = constant(&tape, &[1, 1, 2, 6]).expand(&[1, 4, 2, 6]);
    let positions = |from: i64| tape.constant(Tensor::from_vec([4], (from..from + 4).collect()).unwrap());
    let products = |from: i64| {
        let rotated = x.rotary_embedding(&positions(from), 100.0);
        (rotated.slice(1, 0, 1) * rotated.slice(1, 2, 3)).sum(&[-1]).tensor().unwrap().to_f64s()
    };
    let far = products(10);
    for (near, far) in products(0).iter().zip(&far) {
        assert!((near - far).abs() < 1e-12);
    }
    // Norms stay, position 0 rotates nothing, and batches may have their own positions.
    let rotated = x.rotary_embedding(&positions(0), 100.0);
    assert_near(&rotated.square().sum(&[-1]), &x.square().sum(&[-1]).tensor()?.to_f64s());
    assert_near(&rotated.slice(1, 0, 1), &x.slice(1, 0, 1).tensor()?.to_f64s());
    let own = x.rotary_embedding(&positions(0).unsqueeze(&[0]), 100.0);
    assert_near(&own, &rotated.tensor()?.to_f64s());
    assert_gradients(&[&[1, 2, 1, 4]], |net, x| {
        x[0].rotary_embedding(&net.constant(Tensor::from_vec([2], vec![3_i64, 5]).unwrap()), 100.0)
    });
    for (bad, expected) in [
        (x.slice(3, 0, 5), "makes no frequencies for heads of 5 columns"),
        (x.squeeze(&[0]), "rotary embeddings need"),
    ] {
        let e = bad.rotary_embedding(&positions(0), 100.0).check().unwrap_err().to_string();
        assert!(e.contains(expected), "{e}");
    }
    Ok(())
}
