"""The headings of help: commands that have many options show them in groups."""

# Field of a request -> heading.
PANELS = {
    field: panel
    for panel, fields in {
        "Ranking": "criterion criteria gate granularity calibrated_on with_criterion with_gate",
        "Budget": "shrink sparsity sparsities target_gib target_dtype params_share remove uneven "
        "with_sparsity",
        "Layers": "schedule schedule_file measured_on cost across levels refine",
        "Constraints": "multiple_of floor protect pin drop layer_set lock",
        "Neurons": "atom_scope kept_atoms width_mode width_multiple_of",
        "Corpora": "corpus corpora runs tokens seq_len seed packing truncate count answers "
        "answer_tokens select clusters samples allow_test_set with_corpora",
        "Machine": "dtype device batch_size attention device_map max_memory offload_folder "
        "stream_layers hidden_states_dir expert_parallel checkpoint_activations trust_remote_code "
        "stats_dir revision",
    }.items()
    for field in fields.split()
}
