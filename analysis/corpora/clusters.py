"""K-means clusters of documents or samples, and the one nearest each centroid."""

import numpy as np

from analysis.errors import CorpusError
from analysis.numbers.arrays import FloatArray


def nearest_to_centroids(features: FloatArray, clusters: int, seed: int) -> list[int]:
    """Numbers of the rows of (rows, features) that are nearest to a centroid, ascending."""
    # Imported here: it takes a second, and pages that never cluster load this module.
    from sklearn.cluster import KMeans

    distinct = len(np.unique(features, axis=0))
    if distinct < clusters:
        raise CorpusError(
            f"The corpus has {distinct} distinct documents to choose from, fewer than {clusters} "
            "clusters; use fewer --clusters."
        )
    fitted = KMeans(clusters, n_init=10, random_state=seed % (1 << 32)).fit(features)
    distances = np.linalg.norm(features - fitted.cluster_centers_[fitted.labels_], axis=1)
    chosen = []
    for cluster in range(clusters):
        members = np.flatnonzero(fitted.labels_ == cluster)
        chosen.append(int(members[np.argmin(distances[members])]))
    return sorted(chosen)
