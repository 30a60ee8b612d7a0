//! Metrics over batches.

use autobwd::{Result, Tensor};
use autobwd_ops::metrics::{Auc, ClassAccuracy, ConfusionMatrix, RunningMean};

fn classes(labels: &[i64]) -> Tensor {
    Tensor::from_vec([labels.len()], labels.to_vec()).unwrap()
}

#[test]
fn means_are_weighted_by_samples() {
    let mut mean = RunningMean::new();
    assert!(mean.value().is_nan());
    mean.add(1.0, 3);
    let mut other = RunningMean::new();
    other.add(5.0, 1);
    mean.merge(&other);
    assert_eq!((mean.value(), mean.count()), (2.0, 4));
}

#[test]
fn accuracy_counts_largest_scores_and_ignores_labels() -> Result<()> {
    let mut accuracy = ClassAccuracy::new();
    assert!(accuracy.value().is_nan());
    let scores =
        Tensor::from_vec([4, 3], vec![1.0_f64, 1.0, 0.0, 0.0, 2.0, 3.0, 5.0, 4.0, 3.0, 0.0, 0.0, 9.0])?;
    accuracy.add(&scores, &Tensor::from_vec([4, 1], vec![0_i32, 2, 1, -100])?)?;
    assert_eq!(accuracy.value(), 2.0 / 3.0);
    let mut other = ClassAccuracy::new();
    other.add(&classes(&[7]), &classes(&[7]))?;
    accuracy.merge(&other);
    assert_eq!(accuracy.value(), 0.75);
    for (predicted, labels, text) in [
        (scores.clone(), classes(&[1]), "there are 4 predictions for 1 labels"),
        (
            Tensor::from_vec([4], vec![0.0_f32; 4])?,
            classes(&[1; 4]),
            "scores of shape [n, classes] are needed",
        ),
        (
            scores.clone(),
            Tensor::from_vec([2, 2], vec![0_i64; 4])?,
            "classes of shape [n] or [n, 1] are needed",
        ),
    ] {
        let e = accuracy.add(&predicted, &labels).unwrap_err();
        assert!(e.message().contains(text), "{e}");
    }
    assert!(accuracy.add(&scores, &Tensor::from_vec([4], vec![0.0_f32; 4])?).is_err());
    Ok(())
}

#[test]
fn confusion_matrix_gives_precision_recall_and_f1() -> Result<()> {
    let mut matrix = ConfusionMatrix::new(3);
    matrix.add(&classes(&[0, 1, 1, 2, 2, 2]), &classes(&[0, 0, 1, 1, 2, -100]))?;
    let mut other = ConfusionMatrix::new(3);
    other.add(&classes(&[2]), &classes(&[0]))?;
    matrix.merge(&other)?;
    assert_eq!([0, 1, 2].map(|class| matrix.count(0, class)), [1, 1, 1]);
    assert_eq!([0, 1, 2].map(|class| matrix.precision(class)), [1.0, 0.5, 1.0 / 3.0]);
    assert_eq!([0, 1, 2].map(|class| matrix.recall(class)), [1.0 / 3.0, 0.5, 1.0]);
    assert_eq!([0, 1, 2].map(|class| matrix.f1(class)), [0.5; 3]);
    assert_eq!((matrix.macro_f1(), matrix.accuracy()), (0.5, 0.5));
    // Classes without samples, and classes that do not exist.
    let empty = ConfusionMatrix::new(2);
    assert_eq!((empty.precision(0), empty.recall(0), empty.f1(0), empty.count(5, 0)), (0.0, 0.0, 0.0, 0));
    assert!(empty.accuracy().is_nan());
    let before = matrix.clone();
    let e = matrix.add(&classes(&[0, 0]), &classes(&[0, 3])).unwrap_err();
    assert_eq!(e.message(), "label 3, predicted as 0: there are 3 classes");
    assert_eq!(matrix, before);
    assert!(matrix.add(&classes(&[-1]), &classes(&[0])).is_err());
    assert!(matrix.merge(&empty).is_err());
    Ok(())
}

#[test]
fn area_under_the_curve_counts_pairs() -> Result<()> {
    let mut auc = Auc::new();
    assert!(auc.value().is_nan());
    let scores = [0.5_f32, 0.5, 0.25, 0.75, 0.5, 0.125];
    let labels = [1_i64, 0, 0, 1, 1, -100];
    auc.add(&Tensor::from_vec([6], scores.to_vec())?, &classes(&labels))?;
    let mut pairs = 0.0;
    for i in 0..5 {
        for k in (0..5).filter(|k| labels[i] == 1 && labels[*k] == 0) {
            let (a, b) = (scores[i], scores[k]);
            pairs += if a > b {
                1.0
            } else if a == b {
                0.5
            } else {
                0.0
            };
        }
    }
    assert_eq!(auc.value(), pairs / 6.0);
    let mut other = Auc::new();
    other.add(&Tensor::from_vec([1, 2], vec![9.0_f32, 0.0])?, &classes(&[1]))?;
    other.merge(&auc);
    assert_eq!(other.value(), pairs / 8.0);
    for (score, label) in [(f32::NAN, 1), (0.5, 2)] {
        let e = auc.add(&Tensor::from_vec([1, 1], vec![score])?, &classes(&[label])).unwrap_err();
        assert!(e.message().contains("numbers and labels 0 and 1 are needed"), "{e}");
    }
    assert!(auc.add(&Tensor::from_vec([1, 3], vec![0.0_f32; 3])?, &classes(&[1])).is_err());
    Ok(())
}
