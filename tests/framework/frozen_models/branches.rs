//! Parallel convolutions of the same images become one.

use autobwd::{Builder, Expr, Result};
use autobwd_ops::{Math, nn::Conv2d};

use super::{conv, frozen_for_all, images, normalised};

/// The convolutions of the frozen model.
fn convolutions(net: &Builder, y: &Expr, channels: usize) -> Result<usize> {
    let operators = frozen_for_all(net, &[y], channels)?;
    Ok(operators.iter().filter(|ty| ty.contains("conv2d")).count())
}

#[test]
fn branches_with_smaller_windows_are_merged() -> Result<()> {
    for channels in [3, 16, 33] {
        let net = Builder::new();
        let x = images(&net, channels);
        let sum = normalised(&conv(&x, channels, 3)) + normalised(&conv(&x, channels, 1)) + normalised(&x);
        assert_eq!(convolutions(&net, &sum.relu(), channels)?, 1);
        // The identity comes first, and the sums are of sums.
        let net = Builder::new();
        let x = images(&net, channels);
        let first = normalised(&x) + (conv(&x, channels, 1) * 0.5 + 0.25);
        let second = normalised(&conv(&x, channels, 1)) + normalised(&conv(&x, channels, 5));
        assert_eq!(convolutions(&net, &(first + second), channels)?, 1);
    }
    Ok(())
}

#[test]
fn branches_in_groups_are_merged() -> Result<()> {
    for (channels, groups) in [(16, 16), (17, 17), (32, 2), (8, 2)] {
        let net = Builder::new();
        let x = images(&net, channels);
        let branch = |size: usize| {
            let conv = Conv2d::builder(&net, channels, channels, size).groups(groups);
            normalised(&conv.padding(size as i32 / 2).build().forward(&x))
        };
        let y = branch(3) + branch(1) + normalised(&x) + branch(3);
        assert_eq!(convolutions(&net, &y.relu(), channels)?, 1);
    }
    Ok(())
}

#[test]
fn strides_and_dilations_decide_which_branches_are_merged() -> Result<()> {
    let branch = |x: &Expr, (size, padding, stride, dilation): (usize, i32, i32, i32)| {
        let conv = Conv2d::builder(x.builder(), 3, 5, size).padding(padding).stride(stride);
        conv.dilation(dilation).build().forward(x)
    };
    for (first, second, count) in [
        ((3, 1, 2, 1), (1, 0, 2, 1), 1),
        ((3, 2, 1, 2), (1, 0, 1, 1), 1),
        ((5, 4, 1, 2), (3, 2, 1, 2), 1),
        // The taps of one are between the taps of the other.
        ((3, 2, 1, 2), (3, 1, 1, 1), 2),
    ] {
        let net = Builder::new();
        let x = images(&net, 3);
        let sum = branch(&x, first) + branch(&x, second);
        assert_eq!(convolutions(&net, &sum, 3)?, count);
    }
    Ok(())
}

#[test]
fn branches_that_others_read_or_of_other_images_are_kept() -> Result<()> {
    let net = Builder::new();
    let x = images(&net, 4);
    let first = conv(&x, 4, 3);
    let y = &first + conv(&x, 4, 1);
    let operators = frozen_for_all(&net, &[&y, &first], 4)?;
    assert_eq!(operators.iter().filter(|ty| ty.contains("conv2d")).count(), 2, "{operators:?}");

    let net = Builder::new();
    let x = images(&net, 4);
    let first = conv(&x, 4, 3).relu();
    let y = conv(&first, 4, 3) + conv(&x, 4, 3);
    assert_eq!(convolutions(&net, &y, 4)?, 3);

    // A branch that is added to itself.
    let net = Builder::new();
    let first = conv(&images(&net, 4), 4, 3);
    assert_eq!(convolutions(&net, &(&first + &first), 4)?, 1);
    Ok(())
}
